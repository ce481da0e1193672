"""Helpers for tests of exports of Nsight Systems: one run as XSpace and SQLite, and what both answers must share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from hloinspect import trace as trace_file
from hloinspect.analyze.trace import TraceInspection
from hloinspect.measure.columns import FIGURES, TRANSFER_FIGURES
from hloinspect.measure.measured import MeasuredDevice, MeasuredFile
from tests.support.cuda_traces import Event, Trace, write_trace
from tests.support.nsys_traces import COMMAND_BUFFER, Writing, with_memsets_named, write_dump, write_nsys


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers from the XSpace and from the SQLite of one run."""

    xplane: TraceInspection
    nsys: TraceInspection

    @property
    def files(self) -> tuple[MeasuredFile, MeasuredFile]:
        (one,), (other,) = self.xplane.files, self.nsys.files
        return one, other


def answers(trace: Trace, folder: Path, writing: Writing, *, without: tuple[str, ...] = ()) -> Answers:
    """Write one run in both formats and return what ``hloinspect trace`` says of each.

    An export has no step annotations, so neither has the XSpace here, and it shows the instructions of memsets, so this
    one does too. Its modules are in a dump.
    """
    xplane = write_trace(replace(with_memsets_named(trace), annotations=()), folder / "xplane" / "host.xplane.pb")
    nsys = write_nsys(trace, folder / "nsys" / "synthetic.sqlite", writing, without=without)
    return Answers(trace_file(str(xplane)), of_export(nsys, trace))


def of_export(path: Path, trace: Trace) -> TraceInspection:
    """Return what ``hloinspect trace --hlo DUMP`` says of an export; without modules, what it says without."""
    if not trace.modules:
        return trace_file(str(path))
    return trace_file(str(path), hlo=str(write_dump(trace, path.parent / "dump")))


def assert_same_answer(found: Answers) -> None:
    """Assert that both give the same steps, waits, transfers, verdicts and evidence, to the picosecond."""
    one, other = found.files
    not_compared = ("path", "host", "module", "module_path", "step_modules", "devices", "versions", "limits", "unknown")
    for field in fields(MeasuredFile):
        if field.name not in not_compared:
            assert getattr(other, field.name) == getattr(one, field.name), field.name
    assert [device.name for device in other.devices] == [device.name for device in one.devices]
    zero = [min((int(start) for d in file.devices for start in d.start_ps), default=0) for file in (one, other)]
    for ours, theirs in zip(one.devices, other.devices, strict=True):
        assert_same_steps(ours, theirs, zero[1] - zero[0])
    assert [gap for gap in other.unknown if gap not in one.unknown] == []
    assert [gap for gap in one.unknown if gap not in other.unknown] == []
    ours_report, theirs_report = found.xplane.report, found.nsys.report
    assert theirs_report.transfers == ours_report.transfers
    assert theirs_report.step == ours_report.step
    assert theirs_report.findings == ours_report.findings
    assert theirs_report.module == ours_report.module


def assert_same_steps(one: MeasuredDevice, other: MeasuredDevice, later_ps: int) -> None:
    """Assert that two devices agree in every figure, but that the other's clock is ahead."""
    assert other.numbers.tolist() == one.numbers.tolist()
    assert other.set_aside == one.set_aside
    assert other.details == one.details
    assert (other.start_ps - one.start_ps).tolist() == [later_ps] * len(one.start_ps)
    assert (other.end_ps - one.end_ps).tolist() == [later_ps] * len(one.end_ps)
    for name in FIGURES:
        assert other.figures[name].tolist() == one.figures[name].tolist(), name
    assert other.transfers.keys() == one.transfers.keys()
    for number, own in one.transfers.items():
        for name in TRANSFER_FIGURES:
            assert other.transfers[number][name].tolist() == own[name].tolist(), (number, name)
    assert other.launches_known == one.launches_known
    assert other.notes == one.notes


def in_one_launch(events: Sequence[Event], chosen: Iterable[int], *, hidden: bool) -> list[Event]:
    """Return events of which the chosen ones are nodes of CUDA graphs: those chosen ones of a run that follow each
    other are launched at once, as one graph.

    ``hidden``: the profile has not seen how the graphs were made, so they name the launch.
    """
    found, picked = list(events), set(chosen)
    launch: dict[int, list[int]] = defaultdict(list)
    number, before = 0, -2
    for place in sorted(picked):
        if place != before + 1 or found[place].run != found[before].run:
            number += 1
        launch[number].append(place)
        before = place
    of_run: dict[int, int] = defaultdict(int)
    for number, places in launch.items():
        first = found[places[0]]
        of_run[first.run] += 1  # the same graph in each run
        for node, place in enumerate(places):
            op = COMMAND_BUFFER if hidden else found[place].op
            found[place] = replace(
                found[place], op=op, graph=(3, (of_run[first.run] << 12) + node), correlation=number,
                launched_ps=first.launched_ps, launch="cuGraphLaunch",
            )  # fmt: skip
    return found
