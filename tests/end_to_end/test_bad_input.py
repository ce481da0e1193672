"""What is no input gets one clear line, exit code 2, no traceback, and little memory: the command as a user runs it."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from hloinspect.cli import main
from tests.support.offload_samples import GPU, module_text
from tests.support.places import ROOT

SCAN = ROOT / "fixtures" / "jax0.12.0.1" / "gb200_offload_scan" / "module.hlo.txt.gz"
SCAN_PROTO = ROOT / "fixtures" / "jax0.12.0.1" / "gb200_offload_scan" / "module.hlo.pb.gz"
MAX_RSS_BYTES = 300_000_000
COMMANDS = (["inspect", "--target", "gb200"], ["check", "--target", "gb200", "--budget", "stall=2%"])


def text_of_module() -> str:
    return gzip.decompress(SCAN.read_bytes()).decode()


def refused(path: str | Path, *expected: str, arguments: list[str] | None = None, input: bytes | None = None) -> str:
    """The one line on stderr with which every command refuses the input."""
    lines = set()
    for command in [arguments] if arguments else COMMANDS:
        result = CliRunner().invoke(main, [*command, str(path)], input=input)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("hloinspect: error: ")
        assert result.stderr.count("\n") == 1
        lines.add(result.stderr.rstrip("\n"))
    (line,) = lines
    assert "Traceback" not in line
    assert "internal error" not in line
    for word in expected:
        assert word in line
    return line


def written(tmp_path: Path, data: bytes | str, name: str = "input.hlo") -> Path:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


# ---- files that are something else


STABLEHLO = "module @jit_step attributes {mhlo.num_partitions = 1 : i32} {\n  func.func public @main() {\n  }\n}\n"
XPLANE = b"\x0a\x20\x08\x01\x12\x0d/device:GPU:0\x22\x0d\x08\x01\x12\x09\x08\x01\x12\x05memcp"

BAD = [
    pytest.param(b"", "empty", id="empty"),
    pytest.param(b"\n \n\t\n", "white space", id="white space"),
    pytest.param(b"\0" * 4096, "zeros", id="zeros"),
    pytest.param(random.Random(1).randbytes(5000), "binary data", id="random bytes"),
    pytest.param(b"\x7fELF\x02\x01\x01" + b"\0" * 100, "ELF", id="a program"),
    pytest.param(b"hello, world\n", "text that begins with", id="other text"),
    pytest.param(b'{"schema": "x"}', "JSON", id="json"),
    pytest.param(STABLEHLO.encode(), "StableHLO", id="StableHLO"),
    pytest.param(XPLANE, "a profile", id="an xplane"),
    pytest.param("HloModule\n".encode("utf-16"), "UTF-16", id="UTF-16"),
    pytest.param(b"HloModule", "", id="one word"),
    pytest.param(b"HloModule m, is_scheduled=true\n", "ENTRY", id="only a header"),
    pytest.param(
        b"HloModule m\n\nENTRY %e () -> f32[] {\n  ROOT %c = f32[] constant(0)\n}\n", "schedule", id="no schedule"
    ),
    pytest.param(gzip.compress(b"not hlo"), "text that begins with", id="gzip of other text"),
    pytest.param(gzip.compress(b"HloModule m, is_scheduled=true\n" * 50)[:60], "cut off", id="gzip cut off"),
    pytest.param(b"\x1f\x8b\x08\x00" + b"\xff" * 40, "damaged", id="gzip damaged"),
]


@pytest.mark.parametrize(("data", "found"), BAD)
def test_a_file_that_is_something_else_is_refused_with_its_name_and_what_it_is(
    tmp_path: Path, data: bytes, found: str
) -> None:
    path = written(tmp_path, data)
    line = refused(path, str(path), found)
    assert len(line) < 400 + len(str(path))


@pytest.mark.parametrize("data", [param.values[0] for param in BAD[:10]])
def test_the_same_is_refused_on_standard_input(data: bytes) -> None:
    refused("-", "standard input", input=data)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.99])
def test_a_truncated_text_is_refused_with_the_place(tmp_path: Path, share: float) -> None:
    text = text_of_module()
    path = written(tmp_path, text[: int(len(text) * share)])
    refused(path, str(path), "truncated")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95])
def test_a_truncated_proto_or_archive_is_refused(tmp_path: Path, share: float) -> None:
    """Not everywhere: a proto that ends between two of its last fields looks like a whole one."""
    packed = SCAN_PROTO.read_bytes()
    proto = gzip.decompress(packed)
    path = written(tmp_path, proto[: int(len(proto) * share)])
    refused(path, str(path))
    refused(written(tmp_path, packed[: int(len(packed) * share)]), str(path), "cut off")


def test_an_instruction_that_makes_no_sense_is_refused_with_its_line(tmp_path: Path) -> None:
    text = text_of_module()
    for spoilt, number in (
        (
            text.replace(" = pred[] compare(", " = pred[] compare(((", 1),
            text[: text.index(" = pred[] compare(")].count("\n"),
        ),
        (text.replace(" parameter(0)", " parameter", 1), text[: text.index(" parameter(0)")].count("\n")),
    ):
        path = written(tmp_path, spoilt)
        refused(path, f"{path}: line {number + 1}, column ")


def test_a_faulty_line_in_the_middle_of_a_fusion_is_refused_too(tmp_path: Path) -> None:
    # pricing a fusion looks over its lines without parsing them, and must not look past one that it cannot read
    text = text_of_module()
    assert " multiply(" in text[: text.index("ENTRY ")]
    refused(written(tmp_path, text.replace(" multiply(", " multiply[", 1)), "line ")


# ---- paths


def test_what_is_not_there_is_refused_with_what_was_expected() -> None:
    for path in ("no/such/file.hlo", "nowhere", "", "a\nb", "x" * 5000):
        line = refused(path, "HLO text or proto" if len(path) < 300 else "")
        assert len(line) < 6000


def test_a_directory_of_nothing_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, str(tmp_path), "manifest.json", "after_optimizations")


def test_a_python_file_without_a_function_is_refused_with_the_spelling(tmp_path: Path) -> None:
    path = written(tmp_path, "def step(): ...", "train.py")
    refused(path, f"{path}:step")


def test_a_step_without_a_target_is_refused(tmp_path: Path) -> None:
    refused(f"{written(tmp_path, '', 'train.py')}:step", "--target", arguments=["inspect"])


def test_a_step_whose_file_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(f"{tmp_path}/none.py:step", "none.py")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "HloModule m")
    path.chmod(0)
    refused(path, str(path), "Permission denied")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "hloinspect.manifest/1"}', '{"schema": "other/1"}', "\0"])
def test_a_compiled_directory_with_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    written(tmp_path, text, "manifest.json")
    refused(tmp_path, "manifest.json")


def test_a_dump_whose_module_is_empty_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "", "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt")
    refused(tmp_path, "after_optimizations.txt")


# ---- size: the command in a process of its own, whose memory is measured


@dataclass(frozen=True)
class Ended:
    """How a process ended: its code, what it said, its peak resident memory."""

    code: int
    stdout: str
    stderr: str
    rss_bytes: int


# Started from a small process of its own: what a process is forked from counts into its peak memory, and a test
# runner that
# has compiled something is large. Its exit code is the command's.
LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
with open(sys.argv[1], "w") as file:
    file.write(str(usage.ru_maxrss))
os._exit(os.waitstatus_to_exitcode(status) % 256)
"""


def measured(tmp_path: Path, *arguments: str, feed: Callable[[int], None] | None = None, limit: str = "") -> Ended:
    """Runs the command; ``feed`` writes to its standard input, given as a file descriptor."""
    out, err, peak = tmp_path / "stdout", tmp_path / "stderr", tmp_path / "peak"
    env = {**os.environ, "PYTHONPATH": str(ROOT), **({"HLOINSPECT_MAX_BYTES": limit} if limit else {})}
    reader, writer = os.pipe()
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(peak), sys.executable, "-m", "hloinspect", *arguments],
            stdin=reader,
            stdout=stdout,
            stderr=stderr,
            env=env,
        )
    os.close(reader)

    def write() -> None:
        try:
            if feed:
                feed(writer)
        except BrokenPipeError:
            pass
        finally:
            os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    process.wait()
    thread.join()
    scale = 1 if sys.platform == "darwin" else 1024
    return Ended(process.returncode, out.read_text(), err.read_text(), int(peak.read_text()) * scale)


@pytest.fixture(autouse=True)
def _broken_pipes_raise() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def assert_refused(ended: Ended, *expected: str) -> None:
    assert (ended.code, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
    assert all(word in ended.stderr for word in expected), ended.stderr
    assert ended.rss_bytes < MAX_RSS_BYTES


def test_a_gigabyte_of_zeros_is_refused_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "zeros.hlo"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    assert_refused(measured(tmp_path, "inspect", str(path), "--target", "gb200"), str(path), "zeros")


def test_a_gigabyte_of_zeros_behind_a_header_is_refused_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "zeros.hlo"
    path.write_bytes(b"HloModule m, is_scheduled=true\n\n")
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    assert_refused(
        measured(tmp_path, "inspect", str(path), "--target", "gb200", limit="50000000"), str(path), "50,000,000"
    )


@pytest.mark.parametrize("pattern", [b"\x00\xff\x13" * 30000, b"some words and no end\n" * 4000])
def test_a_gigabyte_of_garbage_from_a_pipe_is_refused_from_its_front(tmp_path: Path, pattern: bytes) -> None:
    sent = 0

    def feed(writer: int) -> None:
        nonlocal sent
        while sent < 1 << 30:
            sent += os.write(writer, pattern)

    assert_refused(measured(tmp_path, "inspect", "-", "--target", "gb200", feed=feed), "standard input")
    assert sent < 1 << 24


def bomb(path: Path, front: bytes, filling: bytes, size: int) -> None:
    """A gzip file of ``size`` bytes unpacked."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(front)
        for _ in range(size // len(filling)):
            file.write(filling)


def test_a_bomb_of_zeros_is_refused_from_its_front(tmp_path: Path) -> None:
    path = tmp_path / "bomb.hlo.gz"
    bomb(path, b"", b"\0" * (1 << 22), 1 << 29)
    assert_refused(measured(tmp_path, "inspect", str(path), "--target", "gb200"), str(path), "zeros")


def test_a_bomb_that_begins_like_a_module_goes_off_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.hlo.gz"
    bomb(path, b"HloModule m, is_scheduled=true\n", b" " * (1 << 22), 1 << 29)
    ended = measured(tmp_path, "inspect", str(path), "--target", "gb200", limit="50000000")
    assert_refused(ended, str(path), "50,000,000", "HLOINSPECT_MAX_BYTES")


def test_a_wrong_limit_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "HloModule m")
    assert_refused(measured(tmp_path, "inspect", str(path), limit="much"), "HLOINSPECT_MAX_BYTES", "much")


# ---- modules made to hurt what comes after reading


def judged(tmp_path: Path, text: str) -> tuple[int, str]:
    """Exit code and output of a module that may be judged or refused, but not crash."""
    path = written(tmp_path, text)
    result = CliRunner().invoke(main, ["inspect", str(path), "--target", "gb200", "--format", "json"])
    assert "internal error" not in result.stderr, result.stderr
    assert result.exit_code in (0, 2, 3)
    return result.exit_code, result.output


HOST, DEVICE = "f32[8]{0:S(5)}", "f32[8]{0}"


@pytest.mark.parametrize(
    ("iterations", "depth"),
    [("0", 1), ("0", 150), ("1", 150), ("2", 12), ("999999999999999", 12), ("999999999999999", 150), ("9" * 22, 150)],
)
def test_loops_of_absurd_lengths_are_judged_or_refused(tmp_path: Path, iterations: str, depth: int) -> None:
    config = f', backend_config={{"known_trip_count":{{"n":"{iterations}"}}}}'
    computations = f"%c (q: f32[8]) -> pred[] {{\n  %q = {DEVICE} parameter(0)\n  ROOT %t = pred[] constant(true)\n}}\n"
    computations += f"%b0 (x: f32[8]) -> f32[8] {{\n  %x = {DEVICE} parameter(0)\n"
    computations += f"  %s = ({HOST}, {DEVICE}, u32[]) copy-start(%x){GPU}\n  %d = {HOST} copy-done(%s)\n"
    computations += f"  ROOT %k = {DEVICE} negate(%x)\n}}\n"
    for n in range(1, depth + 1):
        computations += f"%b{n} (y: f32[8]) -> f32[8] {{\n  %y{n} = {DEVICE} parameter(0)\n"
        computations += f"  ROOT %w{n} = {DEVICE} while(%y{n}), condition=%c, body=%b{n - 1}{config}\n}}\n"
    judged(
        tmp_path,
        module_text(f"%a = {DEVICE} parameter(0)\nROOT %r = {DEVICE} call(%a), to_apply=%b{depth}", computations),
    )


@pytest.mark.parametrize("dims", ["0", "1", "999999999999999999", ",".join(["999999999"] * 40)])
def test_shapes_of_absurd_sizes_are_judged_or_refused(tmp_path: Path, dims: str) -> None:
    body = f"""
    %a = f32[{dims}]{{0}} parameter(0)
    %s = (f32[{dims}]{{0:S(5)}}, f32[{dims}]{{0}}, u32[]) copy-start(%a){GPU}
    %k = f32[{dims}]{{0}} negate(%a)
    ROOT %d = f32[{dims}]{{0:S(5)}} copy-done(%s)
    """
    judged(tmp_path, module_text(body))


@pytest.mark.parametrize(
    "line",
    [
        "%s = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(%s)",
        "%s = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start()",
        "%s = () copy-start(%a)",
        "%s = f32[8]{0:S(5)} copy-done(%a)",
        "%s = f32[8]{0:S(5)} copy-done()",
        "%s = f32[8]{0:S(5)} copy()",
        "%s = ((f32[8]{0:S(5)}), f32[8]{0}, u32[]) fusion-start(%a), kind=kLoop, calls=%nowhere",
        "%s = ((f32[8]{0:S(5)}), f32[8]{0}, u32[]) async-start()",
        "%s = f32[8]{0:S(5)} while(%a), condition=%nowhere, body=%nowhere",
        "%s = f32[8]{0:S(5)} while()",
        "%s = f32[8]{0:S(5)} conditional(%a), branch_computations={}",
        "%s = f32[8]{0:S(5)} call(%a)",
        "%s = f32[8]{0:S(5)} get-tuple-element(%a), index=99",
        "%s = f32[8]{0:S(5)} get-tuple-element(%s), index=0",
        "%s = (f32[8]{0:S(5)}) tuple(%s)",
        "%s = f32[8]{0:S(5)} dynamic-update-slice(%s)",
        "%s = f32[8]{0:S(5)} fusion(%a#3#4), kind=kLoop, calls=%nowhere",
        "%s = f32[8]{0:S(5)} parameter(99999999999999999999)",
        "%s = f32[8]{0:S(5)} parameter(-1)",
    ],
)
def test_instructions_that_contradict_themselves_are_judged_or_refused(tmp_path: Path, line: str) -> None:
    judged(tmp_path, module_text(f"%a = f32[8]{{0}} parameter(0)\n{line}{GPU}\nROOT %r = f32[8]{{0}} negate(%a)"))


def test_a_loop_that_cannot_be_counted_is_said_and_is_not_enough_for_a_gate() -> None:
    """The text has lost the root of the loop's body."""
    path = str(ROOT / "tests" / "data" / "cases" / "trip_count_hang.hlo")
    shown = CliRunner().invoke(main, ["inspect", path, "--target", "v5e", "--link", "16GB/s"])
    assert "how many iterations the loop while.12 has cannot be read from the module" in shown.output
    gate = CliRunner().invoke(main, ["check", path, "--target", "v5e", "--link", "16GB/s", "--budget", "stall=99%"])
    assert gate.exit_code == 3
    assert gate.output.startswith("UNKNOWN")


def test_three_thousand_transfers_are_judged(tmp_path: Path) -> None:
    lines = [f"%a = {DEVICE} parameter(0)"]
    for n in range(3000):
        lines += [f"%s{n} = ({HOST}, {DEVICE}, u32[]) copy-start(%a){GPU}", f"%d{n} = {HOST} copy-done(%s{n})"]
    code, output = judged(tmp_path, module_text("\n".join([*lines, "ROOT %r = () tuple()"])))
    assert (code, output.count('"direction": "d2h"')) == (0, 3000)


def test_control_characters_of_a_name_do_not_reach_the_terminal_in_an_error() -> None:
    line = refused("\x1b[2J\u202eevil.hlo", "?[2J?evil.hlo")
    assert line.isprintable()
