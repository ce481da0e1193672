"""MaxText's step for a terminal: what it offloads, what fits, and then the report as for any other step."""

from __future__ import annotations

import textwrap

import click

from hloinspect.errors import printable as clean
from hloinspect.inputs.manifest import NOTE_NO_AUTOTUNING
from hloinspect.maxtext.summary import MaxTextAnswer, Variant
from hloinspect.render.terminal.report_text import share, to_text
from hloinspect.report.schema import MemoryInfo
from hloinspect.units import bytes_text, time_text

_WORDS = {"offload": "offloaded", "remat": "recomputed", "save": "on device"}
_SHOWN = ("scan_layers", "attention", "per_device_batch_size", "max_target_length")


def maxtext_text(answer: MaxTextAnswer, width: int = 100, show_all: bool = False) -> str:
    """The answer in at most ``width`` columns where names allow it."""
    step = answer.variants[0]
    lines = [*_head(answer, width), *_fits(step)]
    if len(answer.variants) > 1:
        lines += ["", *_side_by_side(answer.variants)]
    lines += ["", to_text(step.report, width, show_all)]
    for note in answer.notes:
        if note != NOTE_NO_AUTOTUNING:  # the report has its own words for that
            lines += textwrap.wrap(f"note: {clean(note)}", width, subsequent_indent="   ")
    seconds, memory = f"{step.process_s:.0f} s, {step.compile_s:.0f} s of it in the compiler", step.peak_rss_bytes
    return "\n".join([*lines, f"compiled in {seconds}, with {bytes_text(memory)} of memory"])


def _head(answer: MaxTextAnswer, width: int) -> list[str]:
    settings = answer.settings
    title = click.style(f"MaxText {clean(str(settings.get('version')))}", bold=True)
    model, policy = settings.get("model_name"), settings.get("remat_policy")
    lines = [f"{title}   {clean(str(model))}   remat_policy={clean(str(policy))}"]
    shown = [f"{key}={clean(str(settings[key]))}" for key in _SHOWN if settings.get(key) is not None]
    lines += _wrapped("", "   ".join(shown), width)
    lines += _wrapped("offloads", ", ".join(answer.offloaded) or "nothing", width)
    if answer.on_device:
        lines += _wrapped("on device", ", ".join(answer.on_device), width)
    if answer.unmatched:
        lines += _wrapped("unused", ", ".join(answer.unmatched) + ": in the policy, and no value of the model", width)
    return lines


def _wrapped(word: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        clean(text),
        width,
        initial_indent=f" {word:<10}",
        subsequent_indent=" " * 11,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fits(step: Variant) -> list[str]:
    memory, host = step.report.memory, step.host
    kind = "device" if step.report.module.platform == "tpu" else "GPU"  # a chip may be two
    sharers = f"by the {host.devices} {kind}s of a host" if host.devices > 1 else f"by one {kind}"
    return [
        f" {'device':<10}{_of(memory.device_bytes, memory.device_limit_bytes)} on each {kind}",
        f" {'host':<10}{_of(host.bytes, host.limit_bytes)}, pinned, {sharers}",
    ]


def _of(used: int | None, limit: int | None) -> str:
    """``80.3 GiB = 44 % of 184 GiB``, in red where it is more than there is."""
    if used is None:
        return "unknown"
    if limit is None:
        return bytes_text(used)
    text = f"{bytes_text(used)} = {share(used, limit)} of {bytes_text(limit)}"
    return click.style(f"{text}: does not fit", fg="red") if used > limit else text


def _side_by_side(variants: tuple[Variant, ...]) -> list[str]:
    header = ["tensors", "step", "waits", "device", "fits", f"host of {variants[0].host.devices}", "fits"]
    rows = [header, *(_row(variant) for variant in variants)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = []
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, len(header)))]
        line = " " + "   ".join(cells).rstrip()
        lines.append(line if number else click.style(line, bold=True))
    return lines


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
