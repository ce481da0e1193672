"""The function ``hloinspect.check`` in Python."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path

import pytest

import hloinspect
from hloinspect.errors import HloInspectError, InputError, UsageError
from hloinspect.gate.errors import BudgetExceeded, NotEnoughEvidence
from tests.support.gate_samples import SMALL, fixture_text


class Compiled:
    """The part of a jax.stages.Compiled that hloinspect uses: its text. The real one is checked in test_ci.py."""

    def as_text(self) -> str:
        return fixture_text("gb200_host_stack_donated")


def test_what_is_within_is_returned_and_what_is_over_is_raised_with_the_report() -> None:
    checked = hloinspect.check(str(SMALL), target="gb200", budget=["stall=99%", "count=99"])
    assert [result.status for result in checked.results] == ["within", "within"]
    with pytest.raises(BudgetExceeded, match=r"stall=1%  predicted .* of at most") as caught:
        hloinspect.check(SMALL, target="gb200", budget="stall=1%")
    assert not isinstance(caught.value, NotEnoughEvidence)
    assert caught.value.report.step == checked.report.step
    assert len(list(caught.value.report)) == len(checked.report.transfers) + len(checked.report.findings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("target", "kind"), [("gb200", BudgetExceeded), (None, NotEnoughEvidence)])
def test_the_error_can_be_copied_and_sent_to_another_process(target: str | None, kind: type[BudgetExceeded]) -> None:
    with pytest.raises(kind) as caught:
        hloinspect.check(SMALL, target=target, budget="stall=1%")
    for again in (copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert (type(again), str(again)) == (kind, str(caught.value))
        assert again.report == caught.value.report


def test_an_unknown_is_raised_unless_it_is_allowed() -> None:
    with pytest.raises(NotEnoughEvidence, match="no target was given"):
        hloinspect.check(SMALL, budget="stall=99%")
    assert hloinspect.check(SMALL, budget="stall=99%", allow_unknown=True).results[0].status == "unknown"


def test_a_baseline_is_recorded_and_held(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    with pytest.raises(InputError, match="there is no baseline"):
        hloinspect.check(SMALL, target="gb200", baseline=path)
    hloinspect.check(SMALL, target="gb200", name="step", baseline=path, update_baseline=True)
    assert hloinspect.check(SMALL, target="gb200", name="step", baseline=path).difference is not None
    with pytest.raises(NotEnoughEvidence, match="no entry for other"):
        hloinspect.check(SMALL, target="gb200", name="other", baseline=path, allow_unknown=True)
    with pytest.raises(NotEnoughEvidence, match="was not changed"):
        hloinspect.check(SMALL, baseline=path, update_baseline=True)


def test_a_program_without_a_file_does_not_replace_the_entry_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(SMALL, "jit_replace_one")
    found = hloinspect.check(Compiled(), target="gb200", baseline="b.json", update_baseline=True)
    hloinspect.check(found.report, baseline="b.json", update_baseline=True)  # the same program
    with pytest.raises(UsageError, match=r"is that of a program of Python, and this is jit_replace_one"):
        hloinspect.check("jit_replace_one", target="gb200", baseline="b.json", update_baseline=True)


def test_a_report_an_inspection_and_a_compiled_program_are_checked_as_they_are() -> None:
    found = hloinspect.inspect(str(SMALL), target="gb200")
    of_report = hloinspect.check(found.report, budget="stall=99%")
    of_inspection = hloinspect.check(found, budget="stall=99%")
    of_program = hloinspect.check(Compiled(), target="gb200", budget="stall=99%")
    values = {checked.results[0].value for checked in (of_report, of_inspection, of_program)}
    assert len(values) == 1
    assert of_program.name == of_program.report.input.path == "jit_replace_one"


def local_step() -> None:
    """Do nothing, in place of a step."""


def test_what_is_no_step_says_so() -> None:
    class Jitted:
        def lower(self) -> None: ...

    for what, word in (
        (3, "int is no step"),
        (Jitted(), "give the result of its lower"),
        (lambda: 1, "not at the top"),
    ):
        with pytest.raises(UsageError, match=word):
            hloinspect.check(what, target="gb200", budget="stall=1%")
    with pytest.raises(UsageError, match="a gate needs a limit"):
        hloinspect.check(SMALL, target="gb200")
    with pytest.raises(UsageError, match="which"):
        hloinspect.check(SMALL, target="gb200", budget="stall=1%", update_baseline=True)


def test_a_function_of_a_file_is_a_step_by_its_name() -> None:
    from hloinspect.gate.verb import step_of

    assert step_of(local_step) == f"{__file__}:local_step"


def test_errors_of_the_gate_are_the_packages_errors() -> None:
    assert issubclass(BudgetExceeded, HloInspectError)
    assert issubclass(NotEnoughEvidence, BudgetExceeded)


def test_a_baseline_that_was_not_named_is_missed_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match="update_baseline needs to know which: baseline=FILE"):
        hloinspect.check("no such input", update_baseline=True)
