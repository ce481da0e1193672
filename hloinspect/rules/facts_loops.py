"""Facts on the loops of a program: which one is around a computation, where they stand, and how long one takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloinspect.units import PS_PER_MS

if TYPE_CHECKING:
    from hloinspect.hardware.target import Target
    from hloinspect.hlo.model import Computation
    from hloinspect.offload.program import Program
    from hloinspect.offload.transfers import Transfer
    from hloinspect.predict.scenario import Scenario

_FREE = frozenset({"get-tuple-element", "tuple", "parameter", "bitcast", "constant", "after-all", "opt-barrier"})
_COLLECTIVES = tuple(
    kind + end
    for kind in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
    for end in ("", "-start")
)


@dataclass(frozen=True, slots=True)
class LoopInfo:
    """The innermost loop around a computation: the name of the while, the computation that holds it, and its
    iterations."""

    name: str
    computation: str
    trips: int


def innermost_loops(program: Program) -> dict[str, LoopInfo]:
    """Return the innermost loop of each computation inside a loop, through calls."""
    found: dict[str, LoopInfo] = {}
    for site in program.call_sites:  # callers come before callees
        call = program.module.computations[site.caller].instruction(site.index)
        if call.opcode == "while":
            found[site.callee] = LoopInfo(call.name, site.caller, site.times)
        elif site.caller in found:
            found[site.callee] = found[site.caller]
    return found


def places_of_loops(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the places of the whiles of each computation with loops."""
    found: dict[str, dict[int, None]] = {}
    for site in program.call_sites:
        if program.module.computations[site.caller].instruction(site.index).opcode == "while":
            found.setdefault(site.caller, {})[site.index] = None
    return {name: tuple(places) for name, places in found.items()}


def work_counts(computation: Computation) -> list[int]:
    """Return the number of kernels, library calls and loops before each place."""
    counts = [0]
    for opcode, _ in computation.outline():
        works = opcode not in _FREE and not opcode.endswith(("-start", "-done", "-update"))
        counts.append(counts[-1] + works)
    return counts


def loop_kernels_ms(program: Program, body: str, target: Target, scenario: Scenario) -> float | None:
    """Return the time of the kernels of a loop's body in all its iterations, in ms.

    Return None where the body has more than kernels in it (collectives, loops, calls).
    """
    from hloinspect.hlo.access import is_free
    from hloinspect.predict.cost import cost_of

    computation, total = program.module.computations[body], 0.0
    if computation.ending_in(*_COLLECTIVES) or body in {site.caller for site in program.call_sites}:
        return None
    for instruction in computation:
        ends = instruction.start_of or instruction.done_of or instruction.opcode.endswith("-update")
        if not ends and not is_free(instruction):
            total += cost_of(program.module, computation, instruction).time_ps(target, scenario)
    return total * program.executions[body] / PS_PER_MS


def is_peeled(program: Program, loops: Mapping[str, LoopInfo], written: Sequence[Transfer]) -> bool:
    """Return whether pipelining has peeled one iteration's writer of a buffer out of the loop, to a place after it.

    ``written`` are all writers of the buffer. Double buffering is different: it peels the first of an odd number of
    iterations, before a loop with two writers in its body.
    """

    def repeats(transfer: Transfer) -> bool:
        loop = loops.get(transfer.computation)
        return loop is not None and loop.trips > 1

    looping = [loops[t.computation] for t in written if repeats(t)]
    outside = [t for t in written if not repeats(t)]
    if not looping or not outside:
        return False
    if len(set(looping)) == len(looping):
        return True
    places = [(loop.computation, program.module.computations[loop.computation].find(loop.name)) for loop in looping]
    return any(
        found is not None and found.index < t.start_index
        for t in outside
        for computation, found in places
        if computation == t.computation
    )
