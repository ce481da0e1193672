"""A report on a trace for a terminal: the first screen says how long the step waits, and for which transfer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import click

from hloinspect.errors import printable
from hloinspect.kinds import EXPOSED, HIDDEN, PARTIAL, SYNCHRONOUS, UNKNOWN
from hloinspect.render.terminal.copies_text import copies_text
from hloinspect.render.terminal.instructions_text import instruction_lines
from hloinspect.render.terminal.notes import limit_lines, unknown_lines
from hloinspect.render.terminal.report_text import (
    LEFT,
    TRANSFERS,
    findings_text,
    judged_lines,
    share,
    tensor_text,
    verdict_text,
    where_text,
)
from hloinspect.render.terminal.table import Layout, columns_named, cut, table
from hloinspect.render.terminal.wrap import flow, shown_length, wrapped
from hloinspect.report.program_names import program_names
from hloinspect.report.schema import DeviceInfo, HostInfo, MeasuredStep, MeasuredTransfer, Report, Spread, TransferInfo
from hloinspect.report.unexplained import unexplained_text
from hloinspect.report.unseen import copies_unseen, graphs_unseen, waits_unseen
from hloinspect.thresholds import SHOWN_REASONS, SHOWN_ROWS, SMALL_STALL_SHARE
from hloinspect.units import bytes_text, listed, time_text

MAX_DEVICES = 8
"""Devices, and hosts, shown one by one: of more, the slowest."""

_VARIES, _VARIES_OF_ALL = 1.05, 0.01
"""The ninetieth percentile of waits has a column if it is so many times the mean somewhere, and that is such a share of
what the transfer takes."""

_SAME = 0.005
_MANY_OTHERS = 0.1
"""From this share of the devices' time on, programs besides the step's are shown by class of instruction too."""

_INDENT = len("predicted step ")

_FEWER = (("p90", None), ("devices", None), ("steps", None))
_HOSTS = Layout((("host", 12), *_FEWER))
_DEVICES = Layout((("device", 12), *_FEWER))


def to_text(report: Report, width: int = 100, show_all: bool = False, picture: Sequence[str] = ()) -> str:
    """Return the report in at most ``width`` columns; ``picture`` are rows that stand above the table (minimap.py)."""
    lines = [
        *_head(report, width),
        "",
        *_step(report, width),
        *([""] if picture else []),
        *picture,
    ]
    if report.transfers:
        lines += ["", *_table(report, width, show_all)]
    lines += _other_tables(report, width, show_all)
    for part in (
        _reasons(report, width),
        instruction_lines(report, width, show_all),
        _hosts(report, width, show_all),
        _devices(report, width, show_all),
        _aside(report, width, show_all),
        _other(report, width),
        copies_text(report, width),
        findings_text(report, width, show_all)[1:],
        _notes(report, width),
    ):
        lines += ["", *part] if part else []
    return "\n".join(lines)


def _unexplained(report: Report, width: int) -> list[str]:
    """Return what the model does not explain, the first that is said of the figures."""
    text = unexplained_text(report)
    return [click.style(line, fg="red") for line in wrapped(printable(text), width, 0, 3)] if text else []


def _head(report: Report, width: int) -> list[str]:
    trace, module = report.trace, report.module
    parts = [click.style(printable(module.name) or "no program", bold=True)]
    if trace is None:
        return [*_unexplained(report, width), *parts]
    hosts = f" on {len(trace.hosts)} hosts" if len(trace.hosts) > 1 else ""
    count = len(report.devices)
    known, device = printable(trace.device_type), "device" if count == 1 else "devices"
    what = f"{count} x {known}" if known else f"{count} {device} without a name in the profile"
    parts.append(f"measured on {what}{hosts}" if count else "no device was measured")
    if report.program.jax:
        parts.append(f"jax {printable(report.program.jax)}")
    parts.append(f"{trace.events:,} events")
    return [*judged_lines(report, width), *_unexplained(report, width), *flow(parts, "   ", width, _INDENT)]


def _step(report: Report, width: int) -> list[str]:
    step = report.step.measured
    if step is None:
        return [click.style("no step was measured", fg="magenta") + ": see 'not known' below"]
    color = "green" if step.stall_ms < SMALL_STALL_SHARE * step.time_ms else "red"
    stall = f"waiting for the host {time_text(step.stall_ms)} = {share(step.stall_ms, step.time_ms)}"
    if waits_unseen(report, step):
        color, stall = "magenta", "waiting for the host: not known"
    time, spread = f"measured step {click.style(time_text(step.time_ms), bold=True)}", f"({_range(step)})"
    fits = shown_length(time) + 1 + len(spread) <= width
    parts = [*([f"{time} {spread}"] if fits else [time, spread]), f"compute {time_text(step.compute_ms)}"]
    if step.collective_exposed_ms > 0:
        parts.append(f"collectives alone {time_text(step.collective_exposed_ms)}")
    parts.append(click.style(stall, fg=color))
    alone = f"transfers alone {time_text(step.exposed_ms.total)} (d2h {time_text(step.exposed_ms.d2h)}, "
    alone += f"h2d {time_text(step.exposed_ms.h2d)})"
    rest = [alone, f"idle {time_text(step.idle_ms)}"]
    if copies_unseen(report) or (report.transfers and all(one.measured is None for one in report.transfers)):
        rest = ["transfers alone: not known", f"idle, or copying to or from the host, {time_text(step.idle_ms)}"]
    if step.host_bound_ms > 0:
        rest.append(f"the host was late for {time_text(step.host_bound_ms)}")
    lines = [*flow(parts, "   ", width, _INDENT), *flow([f"  {rest[0]}", *rest[1:]], "   ", width, _INDENT)]
    waits = step.stall_spread_ms
    if waits.max > 1.5 * waits.median and waits.max - waits.median > SMALL_STALL_SHARE * step.time_ms:
        text = (
            f"waits vary: median {time_text(waits.median)}, nine in ten below {time_text(waits.p90)}, "
            f"up to {time_text(waits.max)}"
        )
        lines += wrapped(text, width, 2, 4)
    programs = report.trace.step_programs if report.trace else ()
    if programs:
        lines += wrapped(programs_text(report), width, 2, 4)
    if report.step.predicted is not None and report.target is not None:
        found = report.step.predicted
        inferred = " (target from the profile's device name)" if report.target.source == "profile" else ""
        what = f"{printable(report.module.name)} alone" if programs else "step"
        text = (
            f"predicted for {printable(report.target.name)}{inferred}: {what} {time_text(found.time_ms)}, compute "
            f"{time_text(found.compute_ms)}, waiting {time_text(found.stall_ms)}"
        )
        lines += wrapped(text, width, 2, 4)
    if not report.transfers:
        if any(unknown.affects == "transfers" for unknown in report.unknown):
            busy = f"{time_text(step.busy_d2h_ms)} d2h and {time_text(step.busy_h2d_ms)} h2d a step"
            seen = f"host transfers run for {busy}, but which they are is not known (see below)"
            any_moved = step.busy_d2h_ms + step.busy_h2d_ms > 0
            text = (
                seen
                if any_moved
                else "no host transfers were found, but not all that talks to the host is followed (see below)"
            )
        else:
            text = "no host transfers: nothing in this program moves between device and host memory"
        lines = [*wrapped(text, width, 0, 3), *lines]
    return lines


def programs_text(report: Report) -> str:
    """Return what the step consists of, where it is several programs."""
    trace, step = report.trace, report.step.measured
    assert trace is not None
    assert step is not None
    names = program_names(trace)
    parts = [
        f"{printable(names[one.program_id])}{f' x{one.runs:.3g}' if one.runs != 1 else ''} "
        f"{time_text(one.time_ms)} = {share(one.time_ms, step.time_ms)}"
        for one in trace.step_programs
    ]
    between = trace.between_programs_ms or 0.0
    return (
        f"the step is {len(parts)} programs: {', '.join(parts)}, between them {time_text(between)} = "
        f"{share(between, step.time_ms)}"
    )


def _range(step: MeasuredStep) -> str:
    seen = (
        f"{step.steps_analyzed:,} of {step.steps_seen:,} steps"
        if step.steps_set_aside
        else f"{step.steps_seen:,} steps"
    )
    return f"mean of {seen}, {time_text(step.step_ms.min)} to {time_text(step.step_ms.max)}"


# ---- transfers

_TENSOR = 1
_BESIDE = Layout((("GB/s", None), *TRANSFERS.narrowing))
"""A table with the prediction beside the measurement: the first that it does without is the rate."""


def _table(report: Report, width: int, show_all: bool) -> list[str]:
    both = report.step.predicted is not None
    model = "; model: the predicted wait" if both else ""
    caption = f" times measured, waits those of a step{model}:"
    lines = [*wrapped(caption, width, 0, 3), *_rows(report.transfers, both, width, show_all)]
    return lines


def _other_tables(report: Report, width: int, show_all: bool) -> list[str]:
    """Return the transfers of the step's other programs."""
    lines: list[str] = []
    names = program_names(report.trace) if report.trace else {}
    for program in report.trace.step_programs if report.trace else ():
        if program.transfers:
            name = printable(names[program.program_id])
            caption = f" transfers of {name}, another program of the step, by ids of its own:"
            lines += ["", *wrapped(caption, width, 0, 3), *_rows(program.transfers, False, width, show_all)]
    return lines


def _rows(transfers: tuple[TransferInfo, ...], both: bool, width: int, show_all: bool) -> list[str]:
    shown = transfers if show_all or len(transfers) <= SHOWN_ROWS else _most_telling(transfers)
    is_window = any(t.measured and t.measured.is_window for t in shown)
    varies = any(t.measured and _varies(t.measured) for t in shown)
    header = ["transfer", "tensor", "each", "runs", "window" if is_window else "takes", "covered", "waits"]
    header += ["p90"] if varies else []
    header += ["model", "ratio"] if both else []
    header += ["GB/s", "verdict", "where"]
    rows = [_row(transfer, both, varies) for transfer in shown]
    for row in rows:
        row[_TENSOR] = cut(row[_TENSOR], 30)
    lines = table(columns_named(header, LEFT), rows, width, _BESIDE if both else TRANSFERS)
    if any(transfer.robust is False for transfer in shown):
        lines.append(" ? the profiler dropped events: the verdict may be wrong")
    if len(shown) < len(transfers):
        text = f"the {len(shown)} that wait the longest, of {len(transfers)}; --all shows them all"
        lines += wrapped(text, width, 1, 3)
    return lines


def _varies(found: MeasuredTransfer) -> bool:
    more = found.p90_ms - found.wait_ms
    return more > (_VARIES - 1) * found.wait_ms and more > _VARIES_OF_ALL * found.duration_ms


def _row(transfer: TransferInfo, both: bool, varies: bool) -> list[str]:
    found, predicted = transfer.measured, transfer.predicted
    kind = {"dma": "", "unknown": ""}.get(transfer.mechanism, f" {transfer.mechanism}")
    row = [f"{transfer.direction} {transfer.id:>3}", tensor_text(transfer) + kind, bytes_text(transfer.bytes)]
    if found is None:
        row += [f"x{transfer.executions}", "", "", "", *([""] if varies else [])]
    else:
        row += [
            f"x{found.runs:.4g}",
            time_text(found.duration_each_ms),
            share(found.cover_ms, found.duration_ms),
            time_text(found.wait_ms),
            *([time_text(found.p90_ms)] if varies else []),
        ]
    if both:
        ratio = found.wait_ratio if found else None
        row += ["" if predicted is None else time_text(predicted.wait_ms), "" if ratio is None else f"{ratio:.2f}"]
    rate = (found.gbps or found.gbps_alone) if found else None
    row.append("" if rate is None else f"{rate:.3g}")
    return [*row, verdict_text(transfer, "?" if transfer.robust is False else ""), where_text(transfer)]


def _most_telling(transfers: tuple[TransferInfo, ...]) -> tuple[TransferInfo, ...]:
    """Return those that wait the longest, in schedule order."""
    ordered = sorted(transfers, key=lambda t: (-(t.measured.wait_ms if t.measured else 0.0), t.id))
    return tuple(sorted(ordered[: SHOWN_ROWS // 2], key=lambda t: t.id))


def _reasons(report: Report, width: int) -> list[str]:
    """Return why the transfers that cost the most are waited for."""
    waiting = [t for t in report.transfers if t.measured and t.verdict in (PARTIAL, EXPOSED, SYNCHRONOUS)]
    waiting = [t for t in waiting if t.measured and t.measured.wait_ms > 0]
    waiting.sort(key=lambda t: -(t.measured.wait_ms if t.measured else 0.0))
    lines: list[str] = []
    for transfer in waiting[:SHOWN_REASONS]:
        text = f"{transfer.direction} {transfer.id} is {transfer.verdict}: {printable(transfer.reason)}."
        lines += wrapped(text, width, 1, 3)
    if unseen := [t for t in report.transfers if t.verdict == UNKNOWN and t.reason]:
        first = f"such as {unseen[0].direction} {unseen[0].id}: {printable(unseen[0].reason)}"
        text = f"{len(unseen):,} of {len(report.transfers):,} are unknown, {first}."
        lines += wrapped(text, width, 1, 3)
    rest = sum(t.verdict == HIDDEN for t in report.transfers)
    if rest and waiting:
        lines.append(f" {rest} of {len(report.transfers)} are hidden.")
    return lines


# ---- hosts, devices and steps


def _hosts(report: Report, width: int, show_all: bool) -> list[str]:
    """Return a row for each host where there are several, the slowest first."""
    every = report.trace.per_host if report.trace else ()
    hosts = sorted((host for host in every if host.step), key=lambda host: -(host.step.time_ms if host.step else 0.0))
    if len(every) < 2 or not hosts:
        return []
    shown = hosts if show_all else hosts[:MAX_DEVICES]
    head = ["host", "devices", "steps", "step", "p90", "compute", "waits", "p90", "idle"]
    lines = table(columns_named(head, {"host"}), [_host_row(report, host) for host in shown], width, _HOSTS)
    if len(shown) < len(hosts):
        lines.append(f" and {len(hosts) - len(shown)} faster hosts (--all shows them)")
    times = [host.step.time_ms for host in hosts if host.step]
    excess = max(times) / min(times) - 1 if min(times) else 0.0
    first = hosts[0]
    device = f" ({printable(first.slowest_device).removeprefix('/device:')})" if first.slowest_device else ""
    text = f"all {len(hosts)} hosts are alike" if len(hosts) > 1 else "one host has steps that count"
    if excess > _SAME:
        text = (
            f"the slowest of {len(hosts)} hosts is {printable(first.host)}{device}: {100 * excess:.1f} % behind the "
            f"fastest, {100 * (max(times) / statistics.median(times) - 1):.1f} % behind the median"
        )
    lines += wrapped(text, width, 1, 3)
    if without := [printable(host.host) for host in every if host.step is None]:
        text = f"no step counts on {listed(without, 3)}"
        lines += wrapped(text, width, 1, 3)
    return lines


def _host_row(report: Report, host: HostInfo) -> list[str]:
    step = host.step
    assert step is not None
    return [
        printable(host.host),
        *(f"{host.devices:,}", f"{step.steps_analyzed:,}"),
        *(time_text(value) for value in (step.time_ms, step.step_ms.p90, step.compute_ms)),
        *_waits(report, step.stall_spread_ms),
        time_text(step.idle_ms),
    ]


def _devices(report: Report, width: int, show_all: bool) -> list[str]:
    devices = [device for device in report.devices if device.step_ms is not None]
    if len(devices) < 2:
        return []
    devices.sort(key=lambda d: -(d.step_ms.mean if d.step_ms else 0.0))
    shown = devices if show_all else devices[:MAX_DEVICES]
    many_hosts = len({device.host for device in devices}) > 1
    head = ["device", "steps", "step", "p90", "compute", "waits", "p90", "idle"]
    lines = table(
        columns_named(head, {"device"}), [_device_row(report, one, many_hosts) for one in shown], width, _DEVICES
    )
    times = [device.step_ms.mean for device in devices if device.step_ms]
    excess = max(times) / min(times) - 1 if min(times) else 0.0
    slowest = f"{printable(devices[0].name).removeprefix('/device:')}, {100 * excess:.1f} % behind the fastest"
    lines.append(f" the slowest of {len(devices)} is {slowest}" if excess > _SAME else f" all {len(devices)} are alike")
    return lines


def _waits(report: Report, waits: Spread) -> tuple[str, str]:
    """Return the mean and the ninetieth percentile of waits, as the line of the step has them."""
    step = report.step.measured
    if waits.max <= 0 and step is not None and waits_unseen(report, step):
        return "-", "-"
    return time_text(waits.mean), time_text(waits.p90)


def _device_row(report: Report, device: DeviceInfo, many_hosts: bool) -> list[str]:
    name = printable(device.name).removeprefix("/device:")
    steps, waits = device.step_ms, device.stall_spread_ms
    assert steps is not None
    assert waits is not None
    return [
        f"{printable(device.host)} {name}" if many_hosts else name,
        f"{device.steps_analyzed:,}",
        *(time_text(value) for value in (steps.mean, steps.p90)),
        *(time_text(device.compute_ms or 0.0), *_waits(report, waits)),
        time_text(device.idle_ms or 0.0),
    ]


def _aside(report: Report, width: int, show_all: bool) -> list[str]:
    """Return the steps that do not count, by reason."""
    reasons: dict[str, list[str]] = {}
    for device in report.devices:
        for step in device.set_aside:
            name = printable(device.name).removeprefix("/device:")
            detail = f" ({printable(step.detail)})" if step.detail else ""
            reasons.setdefault(step.reason, []).append(f"{name} step {step.step}{detail}")
    if not reasons:
        return []
    seen = sum(device.steps_seen for device in report.devices)
    lines = [f"set aside: {sum(map(len, reasons.values())):,} of {seen:,} steps"]
    for reason, steps in sorted(reasons.items(), key=lambda item: -len(item[1])):
        shown = steps if show_all else steps[:1]
        more = f"; and {len(steps) - len(shown):,} more" if len(shown) < len(steps) else ""
        text = f"{len(steps):,} {reason}: {'; '.join(shown)}{more}"
        lines += wrapped(text, width, 2, 4)
    return lines


def _other(report: Report, width: int) -> list[str]:
    """Return programs besides the step's, and the device's own work where there is no step."""
    trace = report.trace
    if trace is None:
        return []
    lines: list[str] = []
    of_step = {program.program_id for program in trace.step_programs}
    others = [one for one in trace.programs if not one.is_step and one.program_id not in of_step]
    total = sum(program.device_ms for program in trace.programs)
    if others and total:
        spent = sum(program.device_ms for program in others)
        called = program_names(trace)
        names = listed([printable(called[program.program_id]) for program in others], 3)
        lines.append(f"other programs took {share(spent, total)} of the devices' time: {names}")
        if spent > _MANY_OTHERS * total and trace.classes_ms:
            every = sum(trace.classes_ms.values())
            parts = [f"{kind} {share(time, every)}" for kind, time in trace.classes_ms.items()]
            lines.append(f"all programs by class of instruction: {listed(parts, 6)}")
    if report.step.measured is None and trace.work_events:
        time = time_text(trace.work_ms or 0.0)
        what = "kernels, memsets and copies within device memory"
        if graphs_unseen(report):
            what = "kernels, memsets, copies within device memory, and CUDA graphs with all in them"
        lines.append(f"{what}: {trace.work_events:,}, {time}")
    return [cut(line, width) for line in lines]


def _notes(report: Report, width: int) -> list[str]:
    limits = (limit for limit in report.limits if limit != unexplained_text(report))  # it stands above
    return [*unknown_lines(report.unknown, width), *limit_lines(limits, width)]
