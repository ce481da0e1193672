"""What commands do with the timeline of an answer: write it for other tools, or draw it above the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import Picture, emit_bytes
from hloinspect.errors import UsageError, printable

if TYPE_CHECKING:
    from hloinspect.analyze.inspect import Inspection
    from hloinspect.analyze.trace import TraceInspection

STYLES = ("perfetto", "xplane")


def emit_timeline(answer: Inspection | TraceInspection, style: str, output: str | None) -> None:
    """Write the timeline as a Perfetto trace, or the predicted one as a profile. Raises UsageError where there is none,
    or where it cannot be written."""
    if style == "perfetto":
        from hloinspect.render.traces.perfetto import to_perfetto

        emit_bytes(to_perfetto(answer), output, "a Perfetto trace")
        if output not in (None, "-"):
            click.echo(printable(f"wrote {output}: open it in https://ui.perfetto.dev, which keeps it in your browser"))
        return
    from hloinspect.render.traces.perfetto import why_not
    from hloinspect.render.traces.xspace import write_profile

    if output is None or output == "-":
        raise UsageError("--format xplane writes a directory: -o DIR, the log directory of XProf or TensorBoard")
    if answer.prediction is None or answer.offload is None:
        raise UsageError(f"no predicted step to write: {why_not(answer.report)}")
    written = write_profile(answer.offload, answer.prediction, Path(output))
    click.echo(printable(f"wrote {written.path}"))
    click.echo(printable(f"xprof --logdir {output}, or tensorboard --logdir {output}, shows it as a run"))
    if not written.has_proto:
        click.echo("the module came from text, so XProf's HLO tools stay empty: `hloinspect compile` writes a proto")


def predicted_picture(answer: Inspection) -> Picture:
    """Draw the predicted step; nothing where there is none."""

    def draw(columns: int, is_unicode: bool) -> Sequence[str]:
        from hloinspect.render.terminal.minimap import minimap

        return minimap(answer.prediction.timeline, columns, is_unicode=is_unicode) if answer.prediction else ()

    return draw


def measured_picture(answer: TraceInspection) -> Picture:
    """Draw a typical step of the device that waits the longest; nothing where none was kept."""

    def draw(columns: int, is_unicode: bool) -> Sequence[str]:
        from hloinspect.render.terminal.minimap import minimap

        found = [
            (float(device.figures["stall_ps"][device.clean].mean()), device.typical, device.platform == "tpu")
            for file in answer.files
            for device in file.devices
            if device.typical is not None and device.clean.any()
        ]
        if not found:
            return ()
        _, typical, is_window = max(found, key=lambda one: one[0])
        return minimap(typical.timeline(), columns, is_unicode=is_unicode, is_window=is_window)

    return draw
