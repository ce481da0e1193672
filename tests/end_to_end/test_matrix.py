"""Every way in which a small program makes host transfers, compiled for real: what hloinspect says against what XLA's
runtime will execute (the thunk sequence) and against a plain search of the module's text.

It runs on the jax of the environment, so that each supported one is held to its own thunks.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.compile.flags import compiler_options
from hloinspect.compile.protocol import Compilation, CompileOne, StepRequest
from hloinspect.compile.topology import choose_topology
from hloinspect.hardware import load_target, target_config_text
from hloinspect.hlo import load_module
from hloinspect.offload.thunks import mechanisms_of, parse_thunks, streams_of, transfer_thunks
from hloinspect.offload.transfers import find_offload
from hloinspect.rules.choice import Choice
from tests.support.jax_versions import JAX, since
from tests.support.matrix_batch import lines_of
from tests.support.places import ROOT

TARGET = "gb200"

PIPELINED = "xla_gpu_enable_pipelined_host_offloading=true"
DOUBLE_BUFFERED = "xla_gpu_enable_while_loop_double_buffering=true"
NO_SCHEDULER = (
    "xla_gpu_enable_latency_hiding_scheduler=false",
    "xla_gpu_enable_analytical_sol_latency_estimator=false",
)
# jax 0.9 has this pass by another name
NO_ANNOTATOR = "xla_disable_hlo_passes=" + (
    "dynamic-slice-annotator" if JAX >= (0, 10) else "fusion-dynamic-memcpy-rewriter"
)


@dataclass(frozen=True)
class Case:
    """A program of matrix_steps.py, and what it must come to: transfers by direction and mechanism (``transfers_0_9``
    with jax 0.9 where that differs), copies within the host, and computation on it (``host_work``)."""

    step: str
    transfers: str
    flags: tuple[str, ...] = ()
    devices: int = 1
    host_copies: int = 0
    host_work: int = 0
    transfers_0_9: str | None = None

    @property
    def name(self) -> str:
        flags = [flag.partition("=")[0].removeprefix("xla_gpu_enable_") for flag in self.flags]
        return "-".join([self.step, *flags, f"{self.devices}dev"])


CASES = [
    Case("activations_scan", "d2h dma, h2d dma"),
    Case("activations_scan_without_barrier", "d2h dma, h2d dma"),
    Case("activations_unrolled", "4 d2h dma, 4 h2d dma"),
    Case("activations_nested_scan", "d2h dma, h2d dma"),
    Case("parameters_by_layer", "h2d dma"),
    # a whole group is first sliced from host to host, once an iteration of the outer loop
    Case("parameters_nested_scan", "h2d dma", host_copies=1),
    Case("parameters_at_once", "h2d dma"),
    Case("optimizer", "d2h dma, h2d dma"),
    Case("contiguous_slice", "h2d kernel"),
    Case("strided_slice", "h2d kernel"),
    Case("data_dependent_slice", "h2d kernel"),
    Case("data_dependent_slice_in_loop", "h2d kernel"),
    Case("gather", "d2h dma, h2d dma", host_copies=1),
    Case("write_donated", "d2h kernel"),
    Case("write_not_donated", "d2h kernel", host_copies=1),
    Case("write_data_dependent", "d2h kernel"),
    Case("transpose_on_host_memory", "", host_copies=1),
    Case("kernel_on_host_memory", "", host_copies=1),
    Case("compute_on_the_host", "d2h dma", host_copies=1, host_work=1),
    Case("conditional", "h2d dma"),
    Case("conditional_in_scan", "h2d dma"),
    Case("nothing_on_the_host", ""),
    # what is peeled out of the loop is a kernel: its slice has no loop to take an address from
    Case("activations_scan", "d2h dma, d2h kernel, h2d dma", (PIPELINED,)),
    Case("activations_scan_without_barrier", "d2h dma, d2h kernel, h2d dma, h2d kernel", (PIPELINED,)),
    Case("activations_nested_scan", "d2h dma, d2h kernel, h2d dma", (PIPELINED,)),
    Case("parameters_by_layer", "h2d dma, h2d kernel", (PIPELINED,)),
    Case("parameters_nested_scan", "h2d dma, h2d kernel", (PIPELINED,), host_copies=1),
    Case("data_dependent_slice_in_loop", "2 h2d kernel", (PIPELINED,)),
    Case("activations_scan", "2 d2h dma, 2 h2d dma", (DOUBLE_BUFFERED,)),
    Case("parameters_by_layer", "2 h2d dma", (DOUBLE_BUFFERED,)),
    Case("conditional_in_scan", "2 h2d dma", (DOUBLE_BUFFERED,)),
    Case(
        "activations_scan",
        "3 d2h dma, d2h kernel, 2 h2d dma",
        (PIPELINED, DOUBLE_BUFFERED),
        # the iteration that is peeled off by double buffering is a kernel too
        transfers_0_9="2 d2h dma, 2 d2h kernel, 2 h2d dma",
    ),
    Case("parameters_nested_scan", "4 h2d dma, 2 h2d kernel", (PIPELINED, DOUBLE_BUFFERED), host_copies=2),
    Case("activations_scan", "d2h dma, h2d dma", NO_SCHEDULER),
    Case("activations_unrolled", "4 d2h dma, 4 h2d dma", NO_SCHEDULER),
    Case("activations_scan", "d2h kernel, h2d kernel", (NO_ANNOTATOR,)),
    Case("parameters_by_layer", "h2d kernel", (NO_ANNOTATOR,)),
    Case("activations_scan", "d2h dma, h2d dma", devices=8),
    Case("activations_unrolled", "4 d2h dma, 4 h2d dma", devices=8),
    Case("parameters_by_layer", "h2d dma", devices=8),
    Case("optimizer", "d2h dma, h2d dma", devices=8),
    Case("write_not_donated", "d2h kernel", devices=8, host_copies=1),
    Case("compute_on_the_host", "d2h dma", devices=8, host_copies=1, host_work=1),
    Case("activations_scan", "d2h dma, d2h kernel, h2d dma", (PIPELINED,), devices=8),
]

ABORTED = "aborted.txt"
"""The file in a case's folder that has the log of a process which XLA has ended."""

XLA_ABORTS = {"gather"} if len(JAX) > 1 and JAX < (0, 10) else set()
"""Steps on which the XLA of this jax ends the process: on the comparison of rows in host memory, an instruction with
two operands (host_offload_utils.cc, GetPredecessors)."""

NOT_WRITTEN_SO = {"compute_on_the_host"} if len(JAX) > 1 and JAX < (0, 10) else set()
"""Steps that this jax cannot lower: in 0.9 ``compute_on`` is a context only, without memory spaces of results."""

pytestmark = pytest.mark.slow
shows_streams = since(10, "a thunk sequence shows neither starts nor streams, and has no metadata")
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
both_readers = pytest.mark.parametrize("file", ["module.hlo.txt", "module.hlo.pb"])


# --- compiling, once a session ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which each case has one of its own, with module, thunk sequence and thunk metadata."""
    pytest.importorskip("jax_cuda13_plugin", reason="compiling needs jax and its CUDA plugin")
    folder = tmp_path_factory.mktemp("matrix")
    for devices in sorted({case.devices for case in CASES}):
        requests = [_request(case, folder) for case in CASES if case.devices == devices]
        _compile(requests, folder / f"log_{devices}.txt")
    return folder


def _request(case: Case, folder: Path) -> CompileOne:
    target = load_target(TARGET)
    layout = choose_topology(target, case.devices, None)
    compilation = Compilation(
        step=StepRequest(step=f"{ROOT / 'tests' / 'support' / 'matrix_steps.py'}:{case.step}"),
        target=target.name,
        platform=target.platform,
        target_config=target_config_text(target),
        devices=layout.devices,
        topology=layout.name,
        xla_flags=case.flags,
        # As a machine with a device prints them: what autotuning writes shows that a text would have a slice's marker.
        compiler_options=compiler_options(case.flags)
        | {"xla_gpu_autotune_level": "4", "xla_gpu_enable_triton_gemm": False},
    )
    return CompileOne(compilation=compilation, out=str(folder / case.name))


def _compile(requests: list[CompileOne], log: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "PYTHONPATH": str(ROOT),
    }
    while requests:
        with log.open("w") as stream:
            done = subprocess.run(
                [sys.executable, str(ROOT / "tests" / "support" / "matrix_batch.py")],
                input=lines_of(requests),
                text=True,
                stdout=stream,
                stderr=stream,
                env=environment,
                check=False,
            )
        if done.returncode == 0:
            return
        # XLA has ended the process with the last program that was begun: the others are compiled in a new one.
        begun = [request for request in requests if Path(request.out).exists()]
        assert done.returncode == -signal.SIGABRT, log.read_text()[-3000:]
        assert begun, log.read_text()[-3000:]
        (Path(begun[-1].out) / ABORTED).write_text(log.read_text())
        requests = requests[len(begun) :]


def _outcome(compiled: Path, case: Case) -> Path:
    folder = compiled / case.name
    if case.step in XLA_ABORTS:
        pytest.skip("XLA of this jax aborts on this program, which leaves no module")
    if case.step in NOT_WRITTEN_SO:
        pytest.skip("this jax has no compute_on that is a function")
    error = folder / "error.txt"
    assert not error.exists(), error.read_text()[-3000:]
    return folder


# --- the other side: plain searches that share no code with hloinspect -----------------------------------------------

_HEADER = re.compile(r"(?:ENTRY )?%(\S+) \(.*\{$")
_INSTRUCTION = re.compile(r"  (?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([a-z][a-z-]*)\((.*?)\)(?:,|$)")
_NO_MOVE = ("parameter", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call", "custom-call")


def host_moves(text: str) -> dict[str, str]:
    """For each instruction with host memory in a text: "d2h", "h2d", or "within" (S(5) on both of its sides)."""
    fused = set(re.findall(r"calls=%([^\s,]+)", text))
    moves: dict[str, str] = {}
    types: dict[str, str] = {}
    computation = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            computation, types = header[1], {}
        if computation in fused or not (match := _INSTRUCTION.match(line)):
            continue
        name, result, opcode, operands = match.groups()
        types[name] = result
        if opcode in _NO_MOVE or opcode.endswith("-done"):
            continue
        sources = [types.get(operand, "") for operand in re.findall(r"%([^\s,)]+)", operands)]
        if opcode == "copy-start":
            result = result.partition("}, ")[0]
        elif opcode.endswith("-start"):
            result = result.rpartition("), ")[2]
        arrays = [source for source in sources if "[]" not in source]
        if "S(5)" in result:
            moves[name] = "within" if arrays and all("S(5)" in source for source in arrays) else "d2h"
        elif any("S(5)" in source for source in arrays):
            moves[name] = "h2d"
    return moves


def started_thunks(sequence: str, metadata: str) -> dict[str, tuple[str, str]]:
    """For each asynchronous start, by its instruction: stream, and "kernel" or "dma" by the deeper lines after it."""
    names = dict(reversed(pair) for pair in re.findall(r'profile_annotation: "([^"]+)"\s+thunk_id: (\d+)', metadata))
    lines = sequence.splitlines()
    found = {}
    for number, line in enumerate(lines):
        if start := re.match(r"( *)0*(\d+): kAsyncStart .*stream=([^,]+),", line):
            deeper = re.match(rf"(?:{start[1]} +.*\n)*", "\n".join(lines[number + 1 :]) + "\n")
            kind = "kernel" if deeper and "kCustomKernel" in deeper[0] else "dma"
            found[names[start[2]]] = (start[3], kind)
    return found


def all_thunk_names(metadata: str) -> set[str]:
    return set(re.findall(r'profile_annotation: "([^"]+)"', metadata))


# --- the tests -------------------------------------------------------------------------------------------------------


def _count(text: str) -> Mapping[str, int]:
    """ "2 d2h dma, h2d kernel" as counts."""
    parts = (part.strip().split(" ") for part in text.split(",") if part.strip())
    return {" ".join(words[-2:]): int(words[0]) if len(words) == 3 else 1 for words in parts}


@each_case
@both_readers
def test_a_program_comes_to_the_transfers_it_was_written_for(compiled: Path, case: Case, file: str) -> None:
    offload = find_offload(load_module(_outcome(compiled, case) / file))
    expected, found = _count(case.transfers), Counter(f"{t.direction} {t.mechanism}" for t in offload.transfers)
    if len(JAX) > 1 and JAX < (0, 10):
        expected = _count(case.transfers if case.transfers_0_9 is None else case.transfers_0_9)
        if file == "module.hlo.txt":  # a text of jax 0.9 does not show the mechanism of a slice
            sliced = {t.start for t in offload.transfers if t.mechanism == "unknown"}
            assert all("slice" in start for start in sliced)
            proto = find_offload(load_module(compiled / case.name / "module.hlo.pb"))
            found = Counter(f"{t.direction} {t.mechanism}" for t in proto.transfers if t.start in sliced)
            found.update(f"{t.direction} {t.mechanism}" for t in offload.transfers if t.start not in sliced)
    assert found == expected
    assert len(offload.host_copies) == case.host_copies
    assert len(offload.unfollowed) == case.host_work


@each_case
@both_readers
def test_transfers_are_the_instructions_with_host_memory_on_one_side_and_no_others(
    compiled: Path, case: Case, file: str
) -> None:
    folder = _outcome(compiled, case)
    offload = find_offload(load_module(folder / file))
    ours = {t.start: t.direction for t in offload.transfers}
    ours |= {copy.instruction: "within" for copy in offload.host_copies}
    ours |= dict.fromkeys(offload.unfollowed, "within")
    assert ours == host_moves((folder / "module.hlo.txt").read_text())


@shows_streams
@each_case
@both_readers
def test_the_runtime_executes_each_transfer_by_the_mechanism_that_is_said(
    compiled: Path, case: Case, file: str
) -> None:
    folder = _outcome(compiled, case)
    module = load_module(folder / file)
    offload = find_offload(module)
    sequence, metadata = ((folder / f"thunk_{part}.txt").read_text() for part in ("sequence", "metadata"))
    thunks = parse_thunks(sequence, metadata)
    said = {(t.start, t.computation, t.direction, t.mechanism, t.asynchronous) for t in offload.transfers}
    assert said == {
        (t.instruction, t.computation, t.direction, t.mechanism, t.asynchronous)
        for t in transfer_thunks(module, thunks)
    }
    assert mechanisms_of(offload, thunks) == {t.id: t.mechanism for t in offload.transfers}
    started = started_thunks(sequence, metadata)
    assert {t.start: t.mechanism for t in offload.transfers if t.asynchronous} == {
        name: kind for name, (_, kind) in started.items() if name in {t.start for t in offload.transfers}
    }
    assert set(host_moves((folder / "module.hlo.txt").read_text())) <= all_thunk_names(metadata)


@pytest.mark.skipif(JAX >= (0, 10), reason="the metadata of thunks says more")
@each_case
def test_the_kernels_of_a_runtime_without_metadata_are_those_that_are_said(compiled: Path, case: Case) -> None:
    folder = _outcome(compiled, case)
    kernels = set(re.findall(r"kKernel .* profile_annotation = ([^,]+),", (folder / "thunk_sequence.txt").read_text()))
    # a kernel has the name of its fusion before that became asynchronous, which the name of its computation keeps
    text = (folder / "module.hlo.txt").read_text()
    fusions = re.findall(r"%(\S+) = .* fusion-start\(.*calls=%(\S+?)_computation(\.\d+)?\.clone[,\s]", text)
    proto = find_offload(load_module(folder / "module.hlo.pb"))
    said = {t.start: t.mechanism for t in proto.transfers if not t.start.startswith("copy-start")}
    assert said == {start: "kernel" if name + number in kernels else "dma" for start, name, number in fusions}


def test_xla_ends_the_process_on_the_programs_that_are_listed_and_no_others(compiled: Path) -> None:
    assert {case.step for case in CASES if (compiled / case.name / ABORTED).exists()} == XLA_ABORTS


@each_case
def test_all_that_a_program_asks_of_host_memory_is_there_and_nothing_else(compiled: Path, case: Case) -> None:
    audit = inspect(str(_outcome(compiled, case)), rules=Choice(select=())).report.audit
    assert audit is not None
    assert (audit.requested_from, audit.unexplained, audit.unexplained_host) == ("jaxpr", (), ())
    # a result that compute_on leaves on the host of a TPU, or a kernel on it, is host compute; nothing is dropped
    assert {entry.outcome for entry in audit.entries} <= {"kept", "kernel", "host compute"}


@shows_streams
@each_case
def test_each_transfer_is_on_the_stream_that_the_thunk_sequence_names(compiled: Path, case: Case) -> None:
    folder = _outcome(compiled, case)
    offload = find_offload(load_module(folder / "module.hlo.txt"))
    sequence, metadata = ((folder / f"thunk_{part}.txt").read_text() for part in ("sequence", "metadata"))
    streams = streams_of(offload, parse_thunks(sequence, metadata))
    started = started_thunks(sequence, metadata)
    assert streams == {t.id: started[t.start][0] if t.asynchronous else "main" for t in offload.transfers}
    for transfer in offload.transfers:
        named = re.fullmatch(r"memcpy_(\w+)_stream", streams[transfer.id])
        assert named is None or named[1] == transfer.direction


@shows_streams
@each_case
def test_nothing_else_runs_on_the_streams_of_copies(compiled: Path, case: Case) -> None:
    folder = _outcome(compiled, case)
    offload = find_offload(load_module(folder / "module.hlo.txt"))
    sequence, metadata = ((folder / f"thunk_{part}.txt").read_text() for part in ("sequence", "metadata"))
    known = {t.start for t in offload.transfers} | {copy.instruction for copy in offload.host_copies}
    # Until jax 0.10 only transfers and collectives are asynchronous. 0.11 has slices within device memory too, on
    # streams of the same name. Later versions name the streams of copies.
    jax = tuple(map(int, json.loads((folder / "manifest.json").read_text())["versions"]["jax"].split(".")[:2]))
    copies = "memcpy_" if jax >= (0, 12) else "computation_stream"
    started = {name for name, (stream, _) in started_thunks(sequence, metadata).items() if stream.startswith(copies)}
    others = started - known
    assert not others or jax == (0, 11)
    assert not others & host_moves((folder / "module.hlo.txt").read_text()).keys()
    assert started >= {t.start for t in offload.transfers if t.asynchronous}
