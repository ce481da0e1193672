"""MaxText's step for a terminal: what it offloads, what fits, and then the report as for any other step."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hloinspect.errors import printable
from hloinspect.inputs.manifest import NOTE_NO_AUTOTUNING
from hloinspect.maxtext.summary import MaxTextAnswer, Variant
from hloinspect.render.terminal.report_text import share, to_text
from hloinspect.render.terminal.table import NARROW, Column, Layout, columns_named, table
from hloinspect.render.terminal.wrap import wrapped
from hloinspect.report.schema import MemoryInfo
from hloinspect.units import bytes_text, time_text

_WORDS = {"offload": "offloaded", "remat": "recomputed", "save": "on device"}
_SHOWN = ("scan_layers", "attention", "per_device_batch_size", "max_target_length")


def maxtext_text(answer: MaxTextAnswer, width: int = 100, show_all: bool = False) -> str:
    """Return the answer in at most ``width`` columns where names allow it."""
    step = answer.variants[0]
    lines = [*_head(answer, width), *_fits(step, width)]
    if len(answer.variants) > 1:
        lines += ["", *_side_by_side(answer.variants, width)]
    lines += ["", to_text(step.report, width, show_all)]
    for note in answer.notes:
        if note != NOTE_NO_AUTOTUNING:  # the report has its own words for that
            lines += wrapped(f"note: {printable(note)}", width, 0, 3)
    seconds, memory = f"{step.process_s:.0f} s, {step.compile_s:.0f} s of it in the compiler", step.peak_rss_bytes
    return "\n".join([*lines, f"compiled in {seconds}, with {bytes_text(memory)} of memory"])


def _head(answer: MaxTextAnswer, width: int) -> list[str]:
    settings = answer.settings
    title = click.style(f"MaxText {printable(str(settings.get('version')))}", bold=True)
    model, policy = settings.get("model_name"), settings.get("remat_policy")
    lines = [f"{title}   {printable(str(model))}   remat_policy={printable(str(policy))}"]
    shown = [f"{key}={printable(str(settings[key]))}" for key in _SHOWN if settings.get(key) is not None]
    entries = [("", "   ".join(shown)), ("offloads", ", ".join(answer.offloaded) or "nothing")]
    if answer.on_device:
        entries.append(("on device", ", ".join(answer.on_device)))
    if answer.unmatched:
        entries.append(("unused", ", ".join(answer.unmatched) + ": in the policy, and no value of the model"))
    return [*lines, *_entries(entries, width)]


def _entries(entries: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return a line for each word, with its text beside it."""
    columns = (Column(is_left=True, least=len("on device")), Column(is_left=True, is_wrapped=True))
    rows = [(word, printable(text)) for word, text in entries]
    return table(columns, rows, width, Layout(gaps=(1, 1), has_head=False))


def _fits(step: Variant, width: int) -> list[str]:
    memory, host = step.report.memory, step.host
    kind = "device" if step.report.module.platform == "tpu" else "GPU"  # a chip may be two
    sharers = f"by the {host.devices} {kind}s of a host" if host.devices > 1 else f"by one {kind}"
    entries = [
        ("device", f"{_of(memory.device_bytes, memory.device_limit_bytes)} on each {kind}"),
        ("host", f"{_of(host.bytes, host.limit_bytes)}, pinned, {sharers}"),
    ]
    return _entries(entries, width)


def _of(used: int | None, limit: int | None) -> str:
    """Return ``80.3 GiB = 44 % of 184 GiB``, in red where it is more than there is."""
    if used is None:
        return "unknown"
    if limit is None:
        return bytes_text(used)
    text = f"{bytes_text(used)} = {share(used, limit)} of {bytes_text(limit)}"
    return click.style(f"{text}: does not fit", fg="red") if used > limit else text


def _side_by_side(variants: tuple[Variant, ...], width: int) -> list[str]:
    header = ["tensors", "step", "waits", "device", "fits", f"host of {variants[0].host.devices}", "fits"]
    rows = [_row(variant) for variant in variants]
    return table(columns_named(header, {"tensors"}), rows, width, NARROW)


def _row(variant: Variant) -> list[str]:
    predicted, memory, host = variant.report.step.predicted, variant.report.memory, variant.host
    return [
        _WORDS[variant.tensors],
        "unknown" if predicted is None else time_text(predicted.time_ms),
        "unknown" if predicted is None else time_text(predicted.stall_ms),
        "unknown" if memory.device_bytes is None else bytes_text(memory.device_bytes),
        _verdict(memory),
        "unknown" if host.bytes is None else bytes_text(host.bytes),
        _fit(host.bytes, host.limit_bytes),
    ]


def _verdict(memory: MemoryInfo) -> str:
    return _fit(memory.device_bytes, memory.device_limit_bytes)


def _fit(used: int | None, limit: int | None) -> str:
    if used is None or limit is None:
        return "unknown"
    return "yes" if used <= limit else "no"
