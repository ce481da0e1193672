"""The command ``hloinspect inspect`` on modules: what it says, in text and in JSON, and with which exit code."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from hloinspect.analyze.inspect import inspect
from hloinspect.cli import main
from hloinspect.render.terminal.report_text import to_text
from tests.support.json_schemas import faults
from tests.support.offload_samples import GPU, module_text
from tests.support.places import ROOT

FIXTURES = ROOT / "fixtures" / "jax0.12.0.1"
SCAN = FIXTURES / "gb200_offload_scan" / "module.hlo.txt.gz"
SCAN_PROTO = FIXTURES / "gb200_offload_scan" / "module.hlo.pb.gz"
SAVE = FIXTURES / "gb200_save" / "module.hlo.txt.gz"
UNROLLED = FIXTURES / "gb200_offload_unrolled" / "module.hlo.txt.gz"
HOST_COMPUTE = FIXTURES / "gb200_compute_on_host_memory" / "module.hlo.txt.gz"
OPTIMIZER = FIXTURES / "gb200_optimizer" / "module.hlo.txt.gz"
SLICE_BYTES = 2 * 256 * 2048 * 2

ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def run(*arguments: str | Path, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)], input=input)


def report(*arguments: str | Path, code: int = 0, input: str | bytes | None = None) -> dict[str, Any]:
    """Return the JSON report, which must keep the contract."""
    result = run(*arguments, "--format", "json", input=input)
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert faults(found, "report") == []
    return found


@pytest.fixture
def sample(tmp_path: Path) -> Callable[[str], Path]:
    """Write a module with this entry computation and return its path."""

    def write(body: str, computations: str = "") -> Path:
        path = tmp_path / "sample.hlo"
        path.write_text(module_text(body, computations), encoding="utf-8")
        return path

    return write


DEVICE, HOST = "f32[1024,1024]{1,0}", "f32[1024,1024]{1,0:S(5)}"
SENT = f"""
%a = {DEVICE} parameter(0)
%s = ({HOST}, {DEVICE}, u32[]) copy-start(%a){GPU}
ROOT %d = {HOST} copy-done(%s)
"""


# ---- JSON


@pytest.mark.parametrize("path", [SCAN, SCAN_PROTO, SAVE, UNROLLED, OPTIMIZER])
def test_json_keeps_the_contract_with_a_target(path: Path) -> None:
    found = report(path, "--target", "gb200")
    assert found["step"]["predicted"]["time_ms"] > 0
    assert found["target"]["name"] == "gb200"
    assert all(transfer["predicted"] for transfer in found["transfers"])


def test_json_keeps_the_contract_without_a_target() -> None:
    found = report(SCAN, code=3)
    assert (found["target"], found["step"]["predicted"]) == (None, None)
    assert {t["verdict"] for t in found["transfers"]} == {"unknown"}
    assert any("no target" in unknown["reason"] for unknown in found["unknown"])


def test_the_transfers_of_a_scan_are_listed_with_bytes_executions_and_source() -> None:
    out, back = report(SCAN, "--target", "gb200")["transfers"]
    assert (out["direction"], back["direction"]) == ("d2h", "h2d")
    for transfer in (out, back):
        assert (transfer["bytes"], transfer["executions"], transfer["bytes_per_step"]) == (
            SLICE_BYTES,
            4,
            4 * SLICE_BYTES,
        )
        assert (transfer["mechanism"], transfer["asynchronous"], transfer["loop_depth"]) == ("dma", True, 1)
        assert transfer["source"]["file"].endswith("examples/dense.py")
    assert (out["round_trip"], back["round_trip"]) == (back["id"], out["id"])


def test_text_and_proto_of_one_module_give_the_same_report_but_for_what_was_read() -> None:
    text, proto = report(SCAN, "--target", "gb200"), report(SCAN_PROTO, "--target", "gb200")
    assert {key for key in text if text[key] != proto[key]} <= {"input", "module"}
    assert (text["input"]["kind"], proto["input"]["kind"]) == ("text", "proto")
    for key in ("name", "platform"):
        assert text["module"][key] == proto["module"][key]


def test_the_same_question_gets_the_same_bytes() -> None:
    first, second = (run(UNROLLED, "--target", "gb200", "--format", "json").stdout for _ in range(2))
    assert first == second


def test_the_digest_is_that_of_the_file() -> None:
    assert report(SCAN, "--target", "gb200")["input"]["sha256"] == hashlib.sha256(SCAN.read_bytes()).hexdigest()


def test_waits_of_transfers_add_up_to_the_stall_of_the_step() -> None:
    for path in (SCAN, UNROLLED, OPTIMIZER):
        found = report(path, "--target", "gb200")
        waits = sum(t["predicted"]["wait_ms"] for t in found["transfers"])
        step = found["step"]["predicted"]
        assert waits == pytest.approx(step["stall_ms"], rel=1e-3, abs=1e-4)
        assert step["stall_d2h_ms"] + step["stall_h2d_ms"] == pytest.approx(step["stall_ms"], rel=1e-3, abs=1e-4)
        assert step["low_ms"] <= step["time_ms"] <= step["high_ms"]


# ---- text


def test_the_first_lines_of_text_answer_the_question() -> None:
    result = run(SCAN, "--target", "gb200")
    assert result.exit_code == 0
    assert result.stdout.startswith("jit_train_step   for 1 x gb200")
    first = result.stdout.splitlines()[2]
    assert re.match(r"predicted step \S+ \w+ \(\S+ to \S+ \w+\)   compute .*waiting for the host .* = \d+ %$", first)
    rows = [line for line in result.stdout.splitlines() if re.match(r" [dh]2[hd] +\d+   ", line)]
    assert len(rows) == 2
    assert all("x4" in row and "2 MiB" in row and "dense.py:" in row for row in rows)


@pytest.mark.parametrize("path", [SCAN, SAVE, UNROLLED, OPTIMIZER, HOST_COMPUTE])
@pytest.mark.parametrize("target", [["--target", "gb200"], []])
def test_text_keeps_to_a_hundred_columns(path: Path, target: list[str]) -> None:
    result = run(path, *target)
    assert [line for line in result.stdout.splitlines() if len(line) > 100] == []


def test_a_module_without_transfers_says_so_with_and_without_a_target() -> None:
    for target in (["--target", "gb200"], []):
        result = run(SAVE, *target)
        assert (result.exit_code, "no host transfers: nothing in this module moves" in result.stdout) == (0, True)


def test_a_kernel_that_works_in_host_memory_is_not_called_nothing() -> None:
    result = run(HOST_COMPUTE, "--target", "gb200")
    assert "nothing in this module moves" not in result.stdout
    assert "waiting for the host" in result.stdout
    assert re.search(r"_fusion\S* reads and writes host memory \(kernel, 8 MiB x1\)", result.stdout)
    assert len(report(HOST_COMPUTE, "--target", "gb200")["host_copies"]) == 1


def test_ways_to_the_host_that_are_not_followed_make_the_answer_unknown(sample: Callable[[str], Path]) -> None:
    path = sample(
        f"%a = {DEVICE} parameter(0)\n"
        f'ROOT %r = ({DEVICE}) custom-call(%a), custom_call_target="xla_ffi_python_gpu_callback"{GPU}'
    )
    result = run(path, "--target", "gb200")
    assert result.exit_code == 3
    assert "nothing in this module moves" not in result.stdout
    assert "not known: r talk" in result.stdout


def test_all_shows_every_row_of_a_long_list(sample: Callable[[str], Path]) -> None:
    lines = [f"%a = {DEVICE} parameter(0)"]
    for n in range(60):
        lines += [f"%s{n} = ({HOST}, {DEVICE}, u32[]) copy-start(%a){GPU}", f"%d{n} = {HOST} copy-done(%s{n})"]
    path = sample("\n".join([*lines, "ROOT %r = () tuple()"]))
    short, full = (run(path, "--target", "gb200", *more).stdout for more in ([], ["--all"]))
    assert "of 60 (" in short
    assert "--all shows them all" in short
    assert [len(re.findall(r"^ d2h +\d+   ", text, re.M)) for text in (short, full)] == [20, 60]
    assert len(report(path, "--target", "gb200")["transfers"]) == 60


# ---- where it goes


def test_output_goes_to_a_file_without_colour_and_nothing_to_stdout(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    result = run(SCAN, "--target", "gb200", "-o", str(target))
    assert (result.exit_code, result.stdout) == (0, "")
    assert target.read_text(encoding="utf-8") == click.unstyle(run(SCAN, "--target", "gb200").stdout)
    assert "\x1b" not in target.read_text(encoding="utf-8")


def test_an_output_that_cannot_be_written_is_one_line_and_code_2(tmp_path: Path) -> None:
    result = run(SCAN, "--target", "gb200", "-o", str(tmp_path / "no" / "such" / "dir"))
    assert result.exit_code == 2
    assert result.stderr.startswith("hloinspect: error: cannot write ")
    assert result.stderr.count("\n") == 1


def test_a_module_can_come_from_standard_input_packed_or_not() -> None:
    packed = SCAN.read_bytes()
    for data in (packed, gzip.decompress(packed), SCAN_PROTO.read_bytes()):
        found = report("-", "--target", "gb200", input=data)
        assert (found["input"]["path"], found["input"]["sha256"]) == ("-", None)
        assert len(found["transfers"]) == 2


def test_a_named_pipe_is_read_once_and_has_no_digest(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(SCAN.read_bytes(),), daemon=True)
    writer.start()
    done = subprocess.run(
        [sys.executable, "-m", "hloinspect", "inspect", str(pipe), "--target", "gb200", "--format", "json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    writer.join(10)
    assert done.returncode == 0
    assert json.loads(done.stdout)["input"]["sha256"] is None


def terminal_output(arguments: list[str], **environment: str) -> str:
    """Return what the command writes to a pseudo-terminal."""
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}
    env = {key: value for key, value in env.items() if value}
    process = subprocess.Popen([sys.executable, "-m", "hloinspect", *arguments], stdout=child, stderr=child, env=env)
    os.close(child)
    parts = []
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the terminal is gone when its last writer is
            break
        if not part:
            break
        parts.append(part)
    process.wait(60)
    os.close(parent)
    return b"".join(parts).decode()


def test_a_terminal_gets_colour_unless_no_color_is_set() -> None:
    arguments = ["inspect", str(SCAN), "--target", "gb200"]
    assert "\x1b[" in terminal_output(arguments, NO_COLOR="")
    plain = terminal_output(arguments, NO_COLOR="1")
    assert "\x1b" not in plain.replace("\r\x1b[K", "")
    assert "\x1b" not in run(SCAN, "--target", "gb200").stdout


def test_hostile_names_bring_no_control_characters_to_the_terminal(tmp_path: Path) -> None:
    """Use a module from anywhere: its names must not clear the screen or write over earlier text."""
    evil = "\x1b[2J\x9b31m\x07\u202e\u2028x"
    octal = "".join(f"\\{byte:03o}" for byte in evil.encode())
    body = (
        f'%a = {DEVICE} parameter(0), metadata={{op_name="{octal}"}}\n'
        f"%s = ({HOST}, {DEVICE}, u32[]) copy-start(%a){GPU}, "
        f'metadata={{op_name="{octal}" source_file="/{octal}.py" source_line=3}}\n'
        f"%d = {HOST} copy-done(%s)\n"
        f'ROOT %k = {HOST} custom-call(%d), custom_call_target="{octal}"'
    )
    path = tmp_path / "evil.hlo"
    text = module_text(body)
    for name in (f"evil{evil.replace(chr(0x2028), '')}", "m"):
        path.write_text(text.replace("HloModule m", f"HloModule {name}"), encoding="utf-8")
        for arguments in (["inspect", str(path), "--target", "gb200"], ["inspect", str(path)]):
            out = terminal_output(arguments, NO_COLOR="1").replace("\r\n", "\n").replace("\r\x1b[K", "")
            assert "copy-start" not in out
            assert "d2h" in out
            assert ESCAPES.findall(out) == []


# ---- targets


def test_a_target_of_the_wrong_platform_gets_no_verdict() -> None:
    found = report(SCAN, "--target", "v6e", code=3)
    assert found["step"]["predicted"] is None
    assert "compiled for a GPU; v6e is a TPU" in found["unknown"][0]["reason"]


def test_an_unknown_target_is_one_line_and_code_2() -> None:
    result = run(SCAN, "--target", "gb20")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "gb20" in result.stderr


def test_a_link_of_ones_own_changes_the_times_and_only_the_times() -> None:
    given = report(SCAN, "--target", "gb200")
    slow = report(SCAN, "--target", "gb200", "--link", "d2h=1GB/s,h2d=2GB/s")
    assert slow["target"]["link"]["d2h_gbps"] == 1.0
    assert slow["target"]["link"]["h2d_gbps"] == 2.0
    out, back = slow["transfers"]
    assert out["predicted"]["duration_each_ms"] >= SLICE_BYTES / 1e9 * 1e3
    assert back["predicted"]["duration_each_ms"] >= SLICE_BYTES / 2e9 * 1e3
    assert slow["step"]["predicted"]["stall_ms"] > given["step"]["predicted"]["stall_ms"]
    keys = ("bytes", "executions", "start", "source", "tensor")
    assert [[t[k] for k in keys] for t in slow["transfers"]] == [[t[k] for k in keys] for t in given["transfers"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--link", "50GB/s"], "--target"),
        (["--target", "gb200", "--link", "fast"], "fast"),
        (["--target", "gb200", "--link", "0GB/s"], "0GB/s"),
        (["--target", "gb200", "--link", "-3GB/s"], "-3GB/s"),
        (["--target", "gb200", "--topology", "nonsense"], "nonsense"),
        (["--target", "gb200", "--topology", "2x16x4", "--devices", "4"], "2x16x4"),
        (["--target", "gb200", "--devices", "0"], "devices"),
        (["--target", "gb200", "--xla-flag", "xla_gpu_foo=1"], "--xla-flag"),
        (["--target", "gb200", "--keep", "kept"], "--keep"),
        (["--target", "gb200", "--module", "1"], "--module"),
        (["--target", "gb200", "--format", "yaml"], "yaml"),
        (["--target"], "--target"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_their_name(arguments: list[str], says: str) -> None:
    result = run(SCAN, *arguments)
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_target_without_a_link_gives_verdicts_only_with_one(tmp_path: Path) -> None:
    """Use a user's TOML, made from the built-in one by removing the link."""
    text = (ROOT / "hloinspect" / "hardware" / "specs" / "gb200.toml").read_text(encoding="utf-8")
    kept, skipping = [], False
    for line in text.splitlines():
        if line.startswith("["):
            skipping = line.strip("[] ").split(".")[0] == "link"
        if not skipping:
            kept.append(line)
    target = tmp_path / "linkless.toml"
    target.write_text("\n".join(kept), encoding="utf-8")
    without = report(SCAN, "--target", target, code=3)
    assert without["target"]["link"] is None
    assert "no host link is published" in without["unknown"][0]["reason"]
    assert report(SCAN, "--target", target, "--link", "100GB/s")["step"]["predicted"]["stall_ms"] >= 0


def test_a_slice_that_walks_against_its_index_is_an_error_on_the_first_screen() -> None:
    wrong = ROOT / "fixtures" / "jax0.10.2" / "gb200_offload_scan" / "module.hlo.pb.gz"
    right = ROOT / "fixtures" / "jax0.12.0.1" / "gb200_offload_scan" / "module.hlo.pb.gz"
    report = inspect(str(wrong), target="gb200").report
    (finding,) = [found for found in report.findings if found.code.startswith("HLO3")]
    assert (finding.code, finding.severity) == ("HLO301", "error")
    assert [t.direction for t in report.transfers if t.id == finding.transfer] == ["h2d"]
    assert finding.evidence["by_index_bytes"] != finding.evidence["emitted_bytes"]
    assert "HLO301 error" in to_text(report)
    assert not [f for f in inspect(str(right), target="gb200").report.findings if f.code.startswith("HLO3")]
