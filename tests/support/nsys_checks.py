"""Helpers for tests of exports of Nsight Systems: one run as XSpace and SQLite, and what both answers must share."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

from hloinspect import trace as trace_file
from hloinspect.analyze.trace import TraceInspection
from hloinspect.measure.columns import FIGURES, TRANSFER_FIGURES
from hloinspect.measure.measured import MeasuredDevice, MeasuredFile
from tests.support.cuda_traces import Trace, write_trace
from tests.support.nsys_traces import Writing, with_memsets_named, write_dump, write_nsys


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
    for field in fields(MeasuredFile):
        if field.name not in ("path", "module", "devices", "versions", "limits", "unknown", "host"):
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
