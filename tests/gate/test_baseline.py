"""The baseline file: sorted, small, the same bytes for the same answer; what it lacks never passes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hloinspect.analyze import inspect as api
from hloinspect.cli import main
from hloinspect.errors import InputError, UsageError
from hloinspect.gate.baseline import Baseline, load_baseline, to_json, update_baseline
from hloinspect.gate.snapshot import Snapshot, snapshot_of
from tests.support.cuda_checks import play, trace_of
from tests.support.cuda_traces import write_trace
from tests.support.gate_samples import (
    FIXTURES,
    OLD_FIXTURES,
    ROOT,
    SMALL,
    check,
    compiled_directory,
    fixture_text,
    renumbered,
)

OPTIMIZER = FIXTURES / "gb200_optimizer" / "module.hlo.txt.gz"
OTHER = FIXTURES / "gb200_compute_on_host_memory" / "module.hlo.txt.gz"
SAVE = FIXTURES / "gb200_save" / "module.hlo.txt.gz"
UNSCHEDULED = FIXTURES / "gb200_offload_scan_unscheduled" / "module.hlo.txt.gz"


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return snapshot_of(api.inspect(str(OPTIMIZER), target="gb200").report, "optimizer")


@pytest.fixture
def baseline(tmp_path: Path, snapshot: Snapshot) -> Path:
    path = tmp_path / "baseline.json"
    update_baseline(path, [snapshot])
    return path


def entries_of(path: Path) -> list[str]:
    return [f"{entry.step} {entry.target}" for entry in load_baseline(path).entries]


# ---- the file


def test_transfers_of_a_profile_without_its_module_are_not_lost_but_unknown(tmp_path: Path) -> None:
    whole = trace_of(play("optimizer"), "optimizer")
    paths = [
        str(write_trace(one, tmp_path / f"{name}.xplane.pb"))
        for name, one in (("with", whole), ("without", replace(whole, modules=())))
    ]
    options = ("--target", "h100", "--baseline", tmp_path / "baseline.json", "--as", "step")
    assert check(paths[0], *options, "--update-baseline").exit_code == 0
    assert check(paths[0], *options, "--budget", "lost=0").exit_code == 0
    found = check(paths[1], *options, "--budget", "lost=0")
    assert found.exit_code == 3
    assert "UNKNOWN" in found.output
    assert "FAILED" not in found.output
    assert "gone" not in found.output
    compared = CliRunner().invoke(main, ["diff", *paths, "--target", "h100"])
    assert compared.exit_code == 3
    assert "are not compared: B has no module" in " ".join(compared.output.split())
    assert not any(word in compared.output for word in ("gone ", "bytes.", "time of "))


def test_what_is_written_is_read_again_to_the_same_bytes(baseline: Path, snapshot: Snapshot) -> None:
    (entry,) = load_baseline(baseline).entries
    assert to_json(load_baseline(baseline)) == baseline.read_text(encoding="utf-8")
    assert entry.transfers == snapshot_rounded(snapshot).transfers
    assert (entry.made, entry.memory, entry.findings) == (snapshot.made, snapshot.memory, snapshot.findings)


def snapshot_rounded(snapshot: Snapshot) -> Snapshot:
    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    groups = tuple(
        dataclasses.replace(
            group,
            duration_ms=rounded(group.duration_ms),
            cover_ms=rounded(group.cover_ms),
            wait_ms=rounded(group.wait_ms),
        )
        for group in snapshot.transfers
    )
    return dataclasses.replace(snapshot, transfers=groups)


def test_the_order_of_updates_does_not_matter_and_others_stay(tmp_path: Path, snapshot: Snapshot) -> None:
    steps = [dataclasses.replace(snapshot, step=step, target=target) for step in "ba" for target in ("h100", "b200")]
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for step in steps:
        update_baseline(one, [step])
    update_baseline(other, [steps[2], steps[0]])
    update_baseline(other, [steps[1], steps[3], steps[0]])
    assert one.read_bytes() == other.read_bytes()
    assert entries_of(one) == ["a b200", "a h100", "b b200", "b h100"]


def test_the_file_is_small_and_says_nothing_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    source = FIXTURES / "gb200_offload_unrolled" / "module.hlo.txt.gz"
    assert check(source, "--target", "gb200", "--as", "step", "--baseline", path, "--update-baseline").exit_code == 0
    text = path.read_text(encoding="utf-8")
    assert len(text) < 10_000
    assert str(ROOT) not in text
    assert "/home/" not in text


def test_a_renumbered_module_from_another_machine_is_no_difference(tmp_path: Path) -> None:
    before, after = tmp_path / "before.hlo", tmp_path / "after.hlo"
    for name in ("gb200_optimizer", "gb200_offload_scan_pipelined"):
        text = fixture_text(name)
        before.write_text(text, encoding="utf-8")
        after.write_text(renumbered(text), encoding="utf-8")
        assert before.read_text() != after.read_text()
        path = tmp_path / f"{name}.json"
        options = ("--target", "gb200", "--as", "step", "--baseline", path)
        assert check(before, *options, "--update-baseline").exit_code == 0
        result = check(after, *options, "--format", "json")
        assert result.exit_code == 0, result.output
        (difference,) = json.loads(result.stdout)["differences"]
        assert (difference["transfers"], difference["findings"], difference["made"]) == ([], [], [])


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path, baseline: Path) -> None:
    script = (
        "import sys, dataclasses; from pathlib import Path;"
        "from hloinspect.gate.baseline import load_baseline, update_baseline;"
        "(one,) = load_baseline(Path(sys.argv[1])).entries;"
        "[update_baseline(Path(sys.argv[2]), [dataclasses.replace(one, step=f'{sys.argv[3]}{n}')]) for n in range(8)]"
    )
    shared = tmp_path / "shared.json"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(baseline), str(shared), name],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for name in "ab"
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(load_baseline(shared).entries) == 16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["baseline.json", "shared.json"]


FAULTY = [
    pytest.param(b"", "not a baseline", id="empty"),
    pytest.param(b"{", "not a baseline", id="cut off"),
    pytest.param(b"[1, 2]", "schema is null", id="a list"),
    pytest.param(b'{"schema": "hloinspect.report/1"}', "hloinspect.baseline/1", id="a report"),
    pytest.param(b'{"schema": "hloinspect.baseline/1"}', "not a whole", id="no entries"),
    pytest.param(b'{"schema": "hloinspect.baseline/1", "entries": [{}]}', "not a whole", id="an empty entry"),
    pytest.param(b'{"schema": "hloinspect.baseline/1", "entries": [null]}', "not a whole", id="null"),
    pytest.param(b"\xff\xfe", "not a baseline", id="no text"),
    pytest.param(b"[" * 100_000, "not a baseline", id="deep"),
]


@pytest.mark.parametrize(("data", "word"), FAULTY)
def test_a_faulty_baseline_is_one_line_and_exit_code_2(tmp_path: Path, data: bytes, word: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(data)
    result = check(SAVE, "--target", "gb200", "--baseline", path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert word in result.stderr
    assert "internal error" not in result.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [("step_ms", float("nan")), ("step_ms", -1), ("step_ms", "7"), ("stall_ms", 3), ("transfers", [1]), ("made", {})],
)
def test_an_entry_with_a_wrong_value_is_refused(baseline: Path, key: str, value: object) -> None:
    data = json.loads(baseline.read_text())
    data["entries"][0][key] = value
    baseline.write_text(json.dumps(data))
    with pytest.raises(InputError, match="not a whole"):
        load_baseline(baseline)


# ---- what is missing never passes


def reason_of(result: Result) -> str:
    """Return the one sentence that says why there is no pass."""
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("MISSING")][:1]
    return line


@pytest.mark.parametrize(
    "change", [{"devices": 0}, {"devices": 10**30}, {"step_ms": 1e300}, {"verdicts": {"hidden": 99}}]
)
def test_what_could_not_be_read_again_is_not_written(
    baseline: Path, snapshot: Snapshot, change: dict[str, object]
) -> None:
    before = baseline.read_bytes()
    with pytest.raises(UsageError, match="was not changed, since it could not be read again: "):
        update_baseline(baseline, [dataclasses.replace(snapshot, step="other", **change)])  # type: ignore[arg-type]
    assert baseline.read_bytes() == before


def test_a_link_to_a_baseline_stays_a_link(tmp_path: Path, baseline: Path, snapshot: Snapshot) -> None:
    link, dangling = tmp_path / "links" / "link.json", tmp_path / "dangling.json"
    link.parent.mkdir()
    link.symlink_to("../baseline.json")
    dangling.symlink_to("later.json")
    update_baseline(link, [dataclasses.replace(snapshot, step="other")])
    update_baseline(dangling, [snapshot])
    assert (link.is_symlink(), dangling.is_symlink(), (tmp_path / "later.json").is_file()) == (True, True, True)
    assert [entry.step for entry in load_baseline(baseline).entries] == ["optimizer", "other"]
    assert sorted(path.name for path in link.parent.iterdir()) == ["link.json"]


def test_a_link_that_goes_nowhere_is_not_replaced(tmp_path: Path) -> None:
    circle, gone = tmp_path / "circle.json", tmp_path / "gone.json"
    circle.symlink_to("circle.json")
    gone.symlink_to("no_such_folder/b.json")
    for path, words in ((circle, "is not a baseline: Too many levels of symbolic links"), (gone, "cannot write")):
        result = check(SAVE, "--target", "gb200", "--baseline", path, "--update-baseline")
        assert (result.exit_code, words in result.output, path.is_symlink()) == (2, True, True)


def test_names_in_what_is_said_of_a_baseline_are_printable(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m\n.json"
    result = check(SAVE, "--target", "gb200", "--baseline", path, "--update-baseline")
    assert result.stderr == f"{tmp_path}/a?[31m?.json: 1 of 1 entries recorded\n"
    (tmp_path / "b.hlo").write_text("HloModule b\n")
    result = check(SAVE, tmp_path / "b.hlo", "--target", "gb200", "--baseline", path, "--update-baseline")
    assert f"{tmp_path}/a?[31m?.json was not changed, since not all steps could be read\n" in result.stderr


def test_a_baseline_that_is_gone_is_reported_before_anything_is_read(tmp_path: Path) -> None:
    result = check("no/such/step.hlo", "--target", "gb200", "--baseline", tmp_path / "gone.json")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "there is no baseline" in result.stderr
    assert "--update-baseline" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "h100", "--as", "optimizer"], ("no entry for optimizer on 1 x h100", "only on 1 x gb200")),
        (["--target", "gb200", "--as", "optimiser"], ("no entry for optimiser", "it has optimizer")),
        (["--target", "gb200", "--as", "optimizer", "--devices", "4"], ("on 4 x gb200", "only on 1 x gb200")),
    ],
)
@pytest.mark.parametrize("allowed", [[], ["--allow-unknown"]])
def test_another_target_step_or_number_of_devices_is_never_a_pass(
    baseline: Path, options: list[str], words: tuple[str, ...], allowed: list[str]
) -> None:
    result = check(SMALL, *options, "--baseline", baseline, *allowed)
    assert result.exit_code == 3
    assert all(word in reason_of(result) for word in words)


def test_an_answer_without_evidence_is_neither_a_pass_nor_a_baseline(tmp_path: Path, baseline: Path) -> None:
    result = check(SMALL, "--as", "optimizer", "--budget", "stall=99%", "--baseline", baseline)
    assert result.exit_code == 3
    before = baseline.read_bytes()
    for source in (UNSCHEDULED, SMALL):
        refused = check(source, "--as", "x", "--baseline", baseline, "--update-baseline")
        assert (refused.exit_code, "was not changed" in refused.stderr) == (2, True)
    assert baseline.read_bytes() == before


def test_budgets_of_a_baseline_need_one() -> None:
    for budget in ("stall+5%", "lost=0"):
        result = check("no/such/step.hlo", "--target", "gb200", "--budget", budget)
        assert (result.exit_code, f"{budget} compares with a baseline" in result.stderr) == (2, True)
    assert check(SAVE, "--target", "gb200", "--budget", "stall=1%", "--update-baseline").exit_code == 2


def test_the_same_step_twice_is_wrong_use(baseline: Path) -> None:
    result = check(SAVE, SAVE, "--target", "gb200", "--baseline", baseline)
    assert (result.exit_code, "is there twice" in result.stderr) == (2, True)


# ---- what changed


def test_a_dropped_offload_fails_though_nothing_waits_any_more(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    options = ("--target", "gb200", "--as", "step", "--baseline", path)
    source = FIXTURES / "gb200_offload_scan" / "module.hlo.txt.gz"
    assert check(source, *options, "--update-baseline").exit_code == 0
    result = check(SAVE, *options)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("FAILED")
    assert "lost=0" in lines[0]
    assert [line.split()[0] for line in lines if line.split()[0] == "gone"]
    assert any("dense.py:" in line for line in lines if line.split()[0] == "gone")


def test_another_version_of_jax_is_reported_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    old = compiled_directory(tmp_path / "old", "gb200_offload_scan_pipelined", OLD_FIXTURES)
    new = compiled_directory(tmp_path / "new", "gb200_offload_scan_pipelined")
    options = ("--as", "step", "--baseline", path)
    # jax 0.10.2 copies slices from other places than the program names.
    assert check(old, *options, "--update-baseline", "--ignore", "HLO301").exit_code == 0
    for budget, code in (("lost=0", 0), ("stall+0ms", None)):
        result = check(new, *options, "--budget", budget)
        assert code is None or result.exit_code == code
        assert "jax: 0.10.2 -> 0.12.0.1" in result.stdout


def test_an_update_says_what_it_did_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "baseline.json"
    result = check(SMALL, OTHER, "--target", "gb200", "--baseline", path, "--update-baseline")
    assert (result.exit_code, "2 of 2 entries recorded" in result.stderr) == (0, True)
    assert check(SMALL, OTHER, "--target", "gb200", "--baseline", path).exit_code == 0


def test_an_empty_baseline_has_no_entry_for_anything(snapshot: Snapshot, tmp_path: Path) -> None:
    nothing = Baseline(tmp_path / "x.json")
    assert nothing.find(snapshot) is None
    assert "no entry for optimizer" in nothing.why_missing(snapshot)


# ---- traces


def test_a_trace_is_compared_with_a_baseline_of_the_same_kind(tmp_path: Path, corpus: Path) -> None:
    path = tmp_path / "baseline.json"
    trace = corpus / "traces" / "tpu_v6e_host_offload.xplane.pb"
    options = ("--as", "step", "--baseline", path)
    assert check(trace, *options, "--update-baseline").exit_code == 0
    result = check(trace, *options)
    assert result.exit_code == 0, result.output
    assert "stall+5%  measured" in result.stdout
    assert [entry.kind for entry in load_baseline(path).entries] == ["measured"]
    module = corpus / "hlo" / "tpu_v6e_host_offload.after_optimizations.txt"
    predicted = check(module, "--target", "v6e", "--link", "50GB/s", *options)
    assert (predicted.exit_code, "1 x v6e, predicted" in reason_of(predicted)) == (3, True)


def test_a_trace_without_evidence_is_no_pass_and_no_baseline(tmp_path: Path, corpus: Path) -> None:
    trace = corpus / "traces" / "rocm_mi300x_jax08.xplane.pb"
    result = check(trace, "--budget", "stall=99%")
    assert (result.exit_code, result.stdout.split()[0]) == (3, "UNKNOWN")
    assert "ROCm" in result.stdout.splitlines()[0]
    refused = check(trace, "--baseline", tmp_path / "new.json", "--update-baseline")
    assert (refused.exit_code, list(tmp_path.iterdir())) == (2, [])
