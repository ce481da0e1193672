"""Exports of Nsight Systems: which range an operation was launched in, against a search through all ranges.

The rule is that of NVIDIA's own report (nvtx_gpu_proj_trace): the innermost push/pop range on the thread of the call
that contains the whole call. The call is that of the operation's process with its correlation id.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.profiles.open import open_trace
from tests.support.nsys_builder import FORMS, Export, global_id, process_of
from tests.support.thorough import examples

TSL, NCCL, MINE = 4, 5, 0


@dataclass(frozen=True, slots=True)
class Range:
    thread: int
    start: int
    end: int | None
    domain: int
    op: str = ""
    program: int = -1
    text: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    thread: int
    start: int
    end: int
    correlation: int


@dataclass(slots=True)
class World:
    """Ranges and calls of a few threads. A range never crosses another one of its thread, as push and pop cannot."""

    rng: random.Random
    ranges: list[Range] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def fill(self, thread: int, start: int, end: int, depth: int) -> None:
        """Fill a time of a thread with ranges, in each of which there may be further ones, and calls."""
        now = start
        while now < end - 2:
            length = self.rng.randrange(1, max(2, (end - now) // self.rng.randrange(1, 4) + 1))
            until = min(now + length, end)
            kind = self.rng.random()
            if kind < 0.35 and depth < 7:
                self._range(thread, now, until, depth)
                self.fill(thread, now, until - 1, depth + 1)  # no two ranges are one interval
            elif kind < 0.75 and until > now:
                self.calls.append(Call(thread, now, until, self.rng.randrange(1, 60)))
            now = until + self.rng.randrange(0, 3)

    def _range(self, thread: int, start: int, end: int, depth: int) -> None:
        kind = self.rng.random()
        closed = None if self.rng.random() < 0.05 else end
        if kind < 0.25 or depth == 0:
            program = self.rng.randrange(1, 4)
            text = f"XlaModule:#hlo_module=jit_f,program_id={program}#"
            self.ranges.append(Range(thread, start, closed, TSL, program=program, text=text))
        elif kind < 0.75:
            op = self.rng.choice(("copy-start.1", "fusion.2", "while.3", "while.3_body", "a_b-c.4.clone"))
            text = self.rng.choice((f"Thunk:#hlo_op={op}#", f"Thunk:#name=f(a=1, b)/x[axes=(0,)],hlo_op={op}#"))
            text = self.rng.choice((text, f"Thunk:#name=,hlo_op={op},unique_hlo_op_id=31#"))
            self.ranges += [Range(thread, start, closed, TSL, op=op, text=text)] * self.rng.choice((1, 1, 2))
        elif kind < 0.85:
            self.ranges.append(Range(thread, start, closed, NCCL, text="ncclGroupEnd"))
        else:
            self.ranges.append(Range(thread, start, closed, MINE, text=self.rng.choice(("train", "", "hlo_op=no#"))))


def around(call: Call, ranges: Sequence[Range]) -> Iterator[Range]:
    """Yield the closed ranges of XLA that contain a call, the innermost first."""
    found = [
        own
        for own in ranges
        if own.thread == call.thread
        and own.domain == TSL
        and own.end is not None
        and own.start <= call.start
        and call.end <= own.end
    ]
    return iter(sorted(found, key=lambda own: (-own.start, own.end)))


def expected(process: int, correlation: int, world: World) -> tuple[str, int]:
    """Return instruction and program (-1: none) of an operation."""
    call = next(
        (c for c in world.calls if process_of(c.thread) == process and c.correlation == correlation and correlation),
        None,
    )
    if call is None:
        return "", -1
    op = next((own.op for own in around(call, world.ranges) if own.op), "")
    return op, next((own.program for own in around(call, world.ranges) if own.program >= 0), -1)


@given(st.integers(0, 2**32))
@settings(max_examples=examples(150, 5000))
def test_operations_join_to_the_innermost_range_around_their_call(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    world = World(rng)
    threads = [global_id(pid, pid + n) for pid in (700, 701) for n in range(rng.randrange(1, 4))]
    for thread in threads:
        world.fill(thread, rng.randrange(-50, 50), rng.randrange(60, 400), 0)
    seen: set[tuple[int, int]] = set()
    unique = []
    for call in world.calls:  # a process gives each call an id of its own, another process the same ids
        if (process_of(call.thread), call.correlation) not in seen:
            seen.add((process_of(call.thread), call.correlation))
            unique.append(call)
    world.calls = unique
    path = tmp_path_factory.mktemp("joins") / "synthetic.sqlite"
    want = written(world, rng, path)
    first = min(want)
    assert found_in(path) == {
        start - first: expected(process, correlation, world) for start, (process, correlation) in want.items()
    }


def written(world: World, rng: random.Random, path: Path) -> dict[int, tuple[int, int]]:
    """Write the file, and return process and correlation id of each operation by its start."""
    export = Export(rng.choice(FORMS))
    operations: dict[int, tuple[int, int]] = {}
    for pid in (700, 701):
        if rng.random() < 0.8:
            export.domain(global_id(pid, pid), TSL, "TSL", at=-100, registered=rng.random() < 0.5)
            export.domain(global_id(pid, pid), NCCL, "NCCL", at=-100, registered=True)
        for _ in range(rng.randrange(1, 30)):
            start = 10_000 + 7 * len(operations)
            number = rng.randrange(0, 70)
            operations[start] = (global_id(pid), number)
            where = {"deviceId": 0, "contextId": 1, "streamId": rng.choice((7, 8)), "globalPid": global_id(pid)}
            if rng.random() < 0.5:
                export.kernel(start, start + 5, "k", correlation=number, **where)
            else:
                kinds = {"copyKind": 2, "srcKind": 2, "dstKind": 1}
                export.memcpy(start, start + 5, correlation=number, bytes=64, **kinds, **where)
    for own in world.ranges:
        registered = rng.random() < 0.5
        export.push_pop(own.thread, own.start, own.end, own.text, domain=own.domain, registered=registered)
    for call in world.calls:
        export.call(call.thread, call.start, call.end, "cuLaunchKernel", correlation=call.correlation)
    export.write(path, shuffle=rng.randrange(100))
    return operations


def found_in(path: Path) -> dict[int, tuple[str, int]]:
    """Return instruction and program of each operation in the file by its start in ns after the first, as the reader
    says."""
    space = open_trace(path)
    found: dict[int, tuple[str, int]] = {}
    for plane in space.planes_of("/device:GPU:"):
        for line in plane.lines:
            columns = line.columns(("hlo_op", "program_id"))
            codes, texts = columns.stats["hlo_op"].labels()
            program = columns.stats["program_id"]
            numbers = program.integers(absent=-1).tolist()
            for start, code, number in zip(columns.start_ps.tolist(), codes.tolist(), numbers, strict=True):
                assert start not in found
                found[start] = (texts[code] if code >= 0 else "", number)
    return {(start - min(found)) // 1000: own for start, own in found.items()}
