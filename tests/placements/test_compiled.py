"""The audit on steps that are compiled here: what is kept is named with its transfers, and a loss with its line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.compile.known_errors import explained
from hloinspect.compile.process import child_environment
from hloinspect.compile.protocol import Compilation, CompileOne, StepRequest
from hloinspect.compile.topology import choose_topology
from hloinspect.errors import CompileError
from hloinspect.hardware import load_target, target_config_text
from hloinspect.report.schema import AuditEntry, AuditInfo, Report
from tests.support.matrix_batch import lines_of
from tests.support.places import ROOT

pytest.importorskip("jax_cuda13_plugin", reason="compiling needs jax and its CUDA plugin")
pytestmark = pytest.mark.slow

STEPS = ROOT / "tests" / "support" / "audit_steps.py"
LINES = STEPS.read_text().splitlines()
KEPT = ("three_names", "dots_policy", "by_hand_in_custom_vjp", "fetched_twice", "result_by_sharding", "unused_argument")
REFUSED = ("strided", "unknown_kernel", "returned_unpinned")
LOST = ("dead", "misspelt", "output_named", "half_folded", "round_trip_at_once", "returned_to_the_device")
Judged = Callable[[str], Report]


def line_with(text: str) -> int:
    """Return the number of the only line of audit_steps.py that contains a text."""
    (number,) = [number for number, line in enumerate(LINES, 1) if text in line]
    return number


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with a directory for each step, compiled by one process."""
    folder = tmp_path_factory.mktemp("audit")
    target = load_target("gb200")
    layout = choose_topology(target, 1, None)
    requests = [
        CompileOne(
            compilation=Compilation(
                step=StepRequest(step=f"{STEPS}:{step}"),
                target=target.name,
                platform=target.platform,
                target_config=target_config_text(target),
                devices=layout.devices,
                topology=layout.name,
            ),
            out=str(folder / step),
        )
        for step in (*KEPT, *LOST, *REFUSED)
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "matrix_batch.py")],
        input=lines_of(requests),
        text=True,
        capture_output=True,
        env={**child_environment("gpu"), "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def judged(compiled: Path) -> Judged:
    """Return the report on a step, made once."""
    reports: dict[str, Report] = {}

    def report(step: str) -> Report:
        if step not in reports:
            error = compiled / step / "error.txt"
            assert not error.exists(), error.read_text()[-3000:]
            reports[step] = inspect(str(compiled / step)).report
        return reports[step]

    return report


def audit_of(report: Report) -> AuditInfo:
    assert report.audit is not None
    assert report.audit.requested_from == "jaxpr"
    return report.audit


def placements(report: Report) -> list[AuditEntry]:
    return [entry for entry in audit_of(report).entries if entry.kind == "value"]


@pytest.mark.parametrize("step", [*KEPT, *LOST])
def test_every_transfer_is_one_that_the_program_requests(judged: Judged, step: str) -> None:
    audit = audit_of(judged(step))
    assert (audit.unexplained, audit.unexplained_host, audit.unknown) == ((), (), ())
    answered = {number for entry in audit.entries for number in entry.transfers}
    assert answered == {transfer.id for transfer in judged(step).transfers}


@pytest.mark.parametrize("step", KEPT)
def test_what_the_program_requests_is_in_the_module(judged: Judged, step: str) -> None:
    assert {entry.outcome for entry in audit_of(judged(step)).entries} <= {"kept", "merged", "unused"}
    assert not {"HLO302", "HLO303", "HLO304", "HLO309", "HLO310"} & {f.code for f in judged(step).findings}


def test_names_are_carried_to_their_transfers_and_those_of_one_line_are_not_guessed(judged: Judged) -> None:
    report = judged("three_names")
    sent = {e.name: e.transfers for e in placements(report) if e.direction == "d2h"}
    back = {e.name: e.transfers for e in placements(report) if e.direction == "h2d"}
    by_id = {transfer.id: transfer for transfer in report.transfers}
    (number,) = sent["input"]
    assert by_id[number].tensor.name == "input"
    assert back["input"] == (by_id[number].round_trip,)
    assert sent["one"] == sent["other"]
    assert len(sent["one"]) == 2
    assert {by_id[number].round_trip for number in sent["one"]} == {*back["one"]} == {*back["other"]}
    lines = {entry.source.line for entry in placements(report) if entry.source and entry.name == "input"}
    assert lines == {line_with("x = checkpoint_name")}


def test_a_policy_without_names_and_placements_by_hand_are_distinguished(judged: Judged) -> None:
    assert {entry.by for entry in placements(judged("dots_policy"))} == {"policy"}
    by_hand = placements(judged("by_hand_in_custom_vjp"))
    assert {(entry.by, entry.runs) for entry in by_hand} == {("device_put", 4)}
    # linearized by JAX, the rules of a custom_vjp have the line that calls it
    assert {entry.source.line for entry in by_hand if entry.source} == {line_with("(product(x, w), None)")}


def test_two_requests_for_one_value_are_one_transfer(judged: Judged) -> None:
    first, second = placements(judged("fetched_twice"))
    assert (first.outcome, second.outcome) == ("kept", "merged")
    assert first.transfers == second.transfers
    assert first.name == "stack"


def test_a_result_that_only_a_sharding_puts_on_the_host_has_its_transfer(judged: Judged) -> None:
    (entry,) = audit_of(judged("result_by_sharding")).entries
    assert (entry.kind, entry.by, entry.outcome, entry.transfers) == ("result", "sharding", "kept", (1,))


def test_an_argument_that_the_step_does_not_use_is_no_loss(judged: Judged) -> None:
    (entry,) = audit_of(judged("unused_argument")).entries
    assert (entry.kind, entry.name, entry.outcome) == ("argument", "state", "unused")


def test_a_placement_that_nothing_needs_is_named_with_its_line(judged: Judged) -> None:
    (entry,) = audit_of(judged("dead")).entries
    assert (entry.outcome, entry.cause) == ("dropped", "dead")
    (found,) = [f for f in judged("dead").findings if f.code == "HLO309"]
    assert (found.severity, found.source and found.source.line) == ("warning", line_with("kept = jax.device_put"))


def test_a_misspelt_name_is_named_with_the_line_of_its_policy_and_the_right_one(judged: Judged) -> None:
    (entry,) = audit_of(judged("misspelt")).entries
    assert (entry.kind, entry.name, entry.outcome, entry.cause) == ("name", "hiden", "never matched", "unknown name")
    (found,) = [f for f in judged("misspelt").findings if f.code == "HLO303"]
    assert found.severity == "error"
    assert "'hidden'" in found.remedy
    assert found.source is not None
    assert found.source.line == line_with("return jax.checkpoint_policies.save_and_offload_only_these_names(")


def test_a_name_on_a_layers_output_exists_and_is_not_needed(judged: Judged) -> None:
    (entry,) = audit_of(judged("output_named")).entries
    assert (entry.name, entry.outcome, entry.cause) == ("output", "never matched", "not needed")
    assert entry.source is not None
    assert entry.source.line == line_with("return checkpoint_name(x + jnp.sin")


def test_of_unrolled_layers_those_without_a_barrier_lose_their_offload(judged: Judged) -> None:
    entries = placements(judged("half_folded"))
    counts = {(entry.direction, entry.outcome, entry.cause): entry.requested for entry in entries}
    assert counts == {
        ("d2h", "kept", None): 2,
        ("h2d", "kept", None): 2,
        ("d2h", "dropped", "folded"): 2,
        ("h2d", "dropped", "folded"): 2,
    }
    (found,) = [f for f in judged("half_folded").findings if f.code == "HLO309"]
    assert (found.severity, found.evidence["requested"]) == ("error", 2)
    assert "prevent_cse=True" in found.remedy
    assert found.source is not None
    assert found.source.line == line_with("hidden = checkpoint_name")


def test_a_round_trip_without_anything_between_is_folded(judged: Judged) -> None:
    causes = {(entry.direction, entry.cause) for entry in placements(judged("round_trip_at_once"))}
    assert causes == {("d2h", "folded"), ("h2d", "folded")}
    codes = [f.code for f in judged("round_trip_at_once").findings if f.code.startswith("HLO3")]
    assert codes == ["HLO302"]  # nothing at all is on the host: one finding, not two


def test_a_result_on_the_device_is_reported_where_it_is_put_on_the_host(judged: Judged) -> None:
    (entry,) = placements(judged("returned_to_the_device"))
    assert (entry.outcome, entry.cause) == ("dropped", "memory kind")
    assert entry.source is not None
    assert entry.source.function == "returned_to_the_device.<locals>.step"


@pytest.mark.parametrize(
    ("step", "line", "remedy"),
    [
        ("strided", "stack[::2, :, ::2]", "fetch whole rows"),
        ("unknown_kernel", "a_kernel_of_nobody", "--xla_dump_to"),
    ],
)
def test_an_error_of_the_compiler_carries_the_users_line_and_what_to_do(
    compiled: Path, step: str, line: str, remedy: str
) -> None:
    error = str(explained(CompileError((compiled / step / "message.txt").read_text())))
    assert f"({STEPS}:{line_with(line)}, in {step}.<locals>.step); HLO308: " in error
    assert remedy in error
    assert "\n" not in error


def test_a_memory_that_a_gpu_has_not_is_refused_as_jax_refuses_it(compiled: Path) -> None:
    error = str(explained(CompileError((compiled / "returned_unpinned" / "message.txt").read_text())))
    assert error.startswith("ValueError: Could not find memory addressable by device")
    assert "HLO308: memory kinds are device and pinned_host" in error
