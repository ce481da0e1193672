"""Agreement of text and proto: both readers give the same model of one module.

jaxlib makes the proto from the text. It runs in a child process, since it may abort on a text that it cannot read.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import lzma
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hloinspect.hlo import Computation, Instruction, Module, Operand, load_module, parse_proto, parse_text
from tests.support.hlo_samples import CORPUS, DATA, FIELDS, ROOT, zoo_proto, zoo_text
from tests.support.thorough import is_thorough

CONVERT = """
import sys
from jaxlib import _hlo
while size := sys.stdin.buffer.readline():
    try:
        made = _hlo.hlo_module_from_text(sys.stdin.buffer.read(int(size)).decode()).as_serialized_hlo_module_proto()
    except Exception as error:
        made = b""
        print(error, file=sys.stderr, flush=True)
    sys.stdout.buffer.write(b"%d\\n" % len(made) + made)
    sys.stdout.buffer.flush()
"""
UNREADABLE = re.compile(r"(\ball-reduce-start\(.*), output_to_operand_aliasing=\{(?:[^{}]|\{[^{}]*\})*\}")
"""Lines that XLA prints and jaxlib's own parser refuses: the aliasing of an all-reduce-start. The model has no such
field."""
PAIRS = sorted(path.parent for path in (ROOT / "fixtures").rglob("module.hlo.pb.gz"))
TEXTS = sorted(
    path
    for folder in ("hlo", "hlo/versions", "maxtext")
    for path in (CORPUS / folder).glob("*")
    if path.name.endswith((".hlo", ".hlo.gz", ".txt"))
)
OF_THE_WRAPPED = ("called", "custom_call_target", "replica_groups", "dim_labels", "window_text", "feature_groups")
"""Fields that a sugared start has from the instruction inside it."""
FRAMES_LOST = ("tpu_llama_train_no_offload",)
"""Fixtures whose stacks jaxlib drops: their table has plain ids, an old spelling. Innermost frames are not compared."""


# ---- one form for the two spellings


def resolved(module: Module, computation: Computation, operand: Operand) -> Operand:
    """Return the operand as a path into what is no get-tuple-element, as compact text writes it."""
    source, path = module.resolve(computation, operand)
    return operand if source is None else Operand(source.name, path)


def wrapped(module: Module, instruction: Instruction) -> Instruction | None:
    """Return the instruction inside an ``async-start``: the root of its only computation."""
    called = [module.computations[name] for name in instruction.called.get("calls", ()) if name in module.computations]
    return called[0].root if instruction.opcode == "async-start" and len(called) == 1 else None


def start_of(computation: Computation, instruction: Instruction) -> Instruction:
    """Return the start of an async update or done."""
    found: Instruction | None = instruction
    while found is not None and found.opcode in ("async-update", "async-done"):
        found = computation.find(found.operands[0].name)
    assert found is not None
    return found


def unwrapped(module: Module, computation: Computation, instruction: Instruction, field: str) -> Any:
    """Return a field as ``compiled.as_text()`` has it.

    That prints an async pair as ``fusion-start`` and ``fusion-done``, with the fields of the instruction inside it.
    """
    if field == "operands":
        return tuple(resolved(module, computation, operand) for operand in instruction.operands)
    if field == "opcode" and instruction.opcode in ("async-update", "async-done"):
        inner = wrapped(module, start_of(computation, instruction))
        return instruction.opcode if inner is None else inner.opcode + instruction.opcode[len("async") :]
    inner = wrapped(module, instruction)
    if inner is not None and field == "opcode":
        return inner.opcode + "-start"
    if inner is not None and field in OF_THE_WRAPPED:
        return getattr(inner, field)
    return getattr(instruction, field)


def wrappers(module: Module) -> set[str]:
    """Return the computations that are only bodies of async pairs, which sugared text does not print."""
    calls = [
        (i.opcode.startswith("async-"), name)
        for c in module.computations.values()
        for i in c
        for name in i.called_names
    ]
    return {name for is_async, name in calls if is_async} - {name for is_async, name in calls if not is_async}


def comparable(field: str, value: Any) -> Any:
    """Return a value for comparison, without ``wait_on_operation_queues``, which current jaxlib drops from older
    text."""
    if field == "backend_config":
        return {key: part for key, part in value.items() if (key, part) != ("wait_on_operation_queues", [])}
    return dict(value) if isinstance(value, Mapping) else value


def differences(text: Module, proto: Module, *, without: tuple[str, ...] = (), every: int = 1) -> Iterator[str]:
    """Yield the differences between two models of one module, in words."""
    fields = [field for field in FIELDS if field not in without]
    for name in ("name", "entry_name", "is_scheduled", "platform"):
        if getattr(text, name) != getattr(proto, name):
            yield f"{name}: {getattr(text, name)} {getattr(proto, name)}"
    for name in ("input_output_alias", "frontend_attributes"):
        if text.attributes.get(name) != proto.attributes.get(name):
            yield f"{name}: {text.attributes.get(name)} {proto.attributes.get(name)}"
    plain = list(text.computations) == list(proto.computations) and text.instruction_count == proto.instruction_count
    if not plain:
        if missing := (set(proto.computations) - wrappers(proto)) ^ (set(text.computations) - wrappers(text)):
            yield f"computations: {missing}"
        fields = [field for field in fields if field != "index"]
    for computation in text.computations.values():
        other = proto.computations[computation.name]
        pair = [[i for i in c if plain or i.opcode != "get-tuple-element" or i.is_root] for c in (computation, other)]
        if len(pair[0]) != len(pair[1]):
            yield f"{computation.name}: {len(pair[0])} and {len(pair[1])} instructions"
        if computation.execution_thread != other.execution_thread or computation.is_entry != other.is_entry:
            yield f"{computation.name}: {computation.execution_thread} {other.execution_thread}"
        for left, right in list(zip(*pair, strict=False))[::every]:
            for field in fields:
                if plain:
                    a, b = getattr(left, field), getattr(right, field)
                else:
                    a, b = unwrapped(text, computation, left, field), unwrapped(proto, other, right, field)
                if comparable(field, a) != comparable(field, b):
                    yield f"{left!r} {right!r} {field}: {a} {b}"
        if plain and list(computation.may_touch_host()) != list(other.may_touch_host()):
            yield f"{computation.name}: host"


@functools.cache
def converter() -> Converter:
    """The one process of this session that converts."""
    return Converter()


class Converter:
    """A process that makes protos of texts, one after the other; another one takes over where it has aborted."""

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the session
        self.child: subprocess.Popen[bytes] | None = None

    def proto_of(self, text: bytes) -> bytes:
        """Return the proto of a text, or nothing where jaxlib does not read it: its reason is in the log."""
        if self.child is None or self.child.poll() is not None:
            self.child = subprocess.Popen(
                [sys.executable, "-c", CONVERT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log
            )
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            self.child.stdin.write(b"%d\n" % len(text) + text)
            self.child.stdin.flush()
            size = int(self.child.stdout.readline() or 0)
        except BrokenPipeError:
            size = 0
        made = self.child.stdout.read(size)
        if not made:
            self.child.stdin.close()
            self.child.stdout.close()
            self.child.wait()
        return made

    def last_words(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-200:].strip()


def converted(text: str) -> bytes:
    """Return the text's proto, made by jaxlib. Skip the test where jaxlib is missing or cannot read the text."""
    if importlib.util.find_spec("jaxlib") is None or importlib.util.find_spec("jaxlib._hlo") is None:
        pytest.skip("no jaxlib with a reader of text")
    made = converter().proto_of(UNREADABLE.sub(r"\1", text).encode())
    if not made:
        pytest.skip(f"this jaxlib does not read it: {converter().last_words()}")
    return made


def unpacked(path: Path) -> str:
    data = path.read_bytes()
    unpack = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)
    return unpack(data).decode()


# ---- the tests


def test_the_zoo_is_the_same_module_as_text_and_as_proto() -> None:
    assert list(differences(parse_text(zoo_text()), parse_proto(zoo_proto()))) == []


def test_a_difference_would_be_found() -> None:
    text = zoo_text()
    for old, new in (
        ("%fetch-done = f32[4,8,16]{2,1,0}", "%fetch-done = f32[4,8,16]{2,1,0:S(5)}"),
        ("line=41", "line=40"),
        ("constant(-300)", "constant(-301)"),
        ("{'y':(2)2,'x'}", "{'y':(1)2,'x'}"),
        ("rhs_contracting_dims={1}", "rhs_contracting_dims={0}"),
        ("negate(%n)", "negate(%m)"),
        ("__dynamic_memcpy", "__other"),
    ):
        assert text.count(old) == 1
        assert list(differences(parse_text(text.replace(old, new)), parse_proto(zoo_proto()))), new


@pytest.mark.slow
def test_jaxlib_makes_the_zoos_proto_of_its_text() -> None:
    made = parse_proto(converted(zoo_text()))
    assert list(differences(parse_text(zoo_text()), made)) == []
    assert made.instruction_count == parse_proto(zoo_proto()).instruction_count


def test_the_files_of_the_zoo_load_as_what_they_are() -> None:
    text, proto = load_module(DATA / "zoo.hlo.txt"), load_module(DATA / "zoo.hlo.pb")
    assert (text.kind, proto.kind) == ("text", "proto")
    assert list(differences(text, proto)) == []


def test_the_tpu_dump_is_the_same_module_as_text_and_as_proto(corpus: Path) -> None:
    text = load_module(corpus / "hlo" / "tpu_v6e_host_offload.after_optimizations.txt")
    proto = load_module(corpus / "hlo" / "tpu_v6e_host_offload.hlo_proto.pb")
    assert (text.platform, text.instruction_count) == ("tpu", 31)
    assert list(differences(text, proto)) == []


@pytest.mark.skipif(not PAIRS, reason="no fixtures with both text and proto")
@pytest.mark.parametrize("folder", PAIRS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_each_fixture_is_the_same_module_as_text_and_as_proto(folder: Path) -> None:
    text, proto = load_module(folder / "module.hlo.txt.gz"), load_module(folder / "module.hlo.pb.gz")
    assert list(differences(text, proto)) == []


@pytest.mark.slow
@pytest.mark.skipif(not TEXTS, reason="no corpus: set HLOINSPECT_CORPUS to its folder")
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_each_text_of_the_corpus_is_the_same_module_as_its_proto(path: Path) -> None:
    text = unpacked(path)
    without: tuple[str, ...] = ()
    if path.name.startswith(FRAMES_LOST):
        without = ("metadata", "backend_config")  # jaxlib also hands a start's configuration to what it wraps
    every = 1 if len(text) < 8_000_000 or is_thorough() else 11
    assert list(differences(parse_text(text), parse_proto(converted(text)), without=without, every=every)) == []
