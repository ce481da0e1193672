"""The part of a module that the device runs: its computations, how often each runs, and in how many loops."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.errors import HloParseError
from hloinspect.hlo.evaluate import trip_count
from hloinspect.hlo.model import Computation, Instruction, Module

_NEEDED = {"while": {"body", "condition"}, "call": {"to_apply"}, "conditional": {"branches"}}
MAX_EXECUTIONS = 10**12
"""Most runs of one computation in a step: more than any device could do in a day."""
MAX_WALKED = 2_000_000
"""Most instructions of a walk through the step that follows each call and each loop once.

The number of calls in calls can multiply, and analyses follow all of them. A module may have any number of
instructions.
"""
_MAX_REPEATED = 10
"""Factor of the module's size that such a walk may always reach."""
CONTROL_FLOW = frozenset(_NEEDED)


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call of a computation: the calling instruction and its computation, and how often for each run of the
    caller."""

    caller: str
    index: int
    callee: str
    times: int


@dataclass(frozen=True)
class Program:
    """The computations that a step runs.

    ``executions`` counts the runs of each reachable computation in one step. ``loop_depth`` counts the loops around it.
    ``order`` has callers before callees. ``unknown_trip_counts`` names the loops counted as one iteration because the
    module does not show their trip count. ``conditional`` has the computations that run only if a branch is taken (they
    are counted as taken).
    """

    module: Module
    order: tuple[str, ...]
    executions: dict[str, int]
    loop_depth: dict[str, int]
    call_sites: tuple[CallSite, ...]
    unknown_trip_counts: tuple[str, ...]
    conditional: frozenset[str]

    def computations(self) -> list[Computation]:
        """Return the reachable computations in ``order``."""
        return [self.module.computations[name] for name in self.order]


def control_flow(computation: Computation) -> list[Instruction]:
    """Return the whiles, calls and conditionals of a computation in the order of the schedule."""
    found = (computation.instruction(index) for index in computation.ending_in("while", "call", "conditional"))
    return [instruction for instruction in found if instruction.opcode in CONTROL_FLOW]


def build_program(module: Module) -> Program:
    """Return the computations reached from the entry through whiles, calls (command buffers of JAX <= 0.8 too) and
    branches.

    Raises HloParseError if computations call each other in a circle.
    """
    sites: dict[str, list[CallSite]] = {}
    unknown: list[str] = []
    loops: set[tuple[str, str]] = set()
    branches: set[str] = set()
    finished: list[str] = []
    state: dict[str, bool] = {}
    stack = [module.entry_name]
    while stack:
        name = stack[-1]
        if name not in state:
            state[name] = False
            sites[name] = _sites(module, module.computations[name], unknown, loops, branches)
            for site in sites[name]:
                if state.get(site.callee) is False:
                    raise HloParseError(f"computations {site.callee} and {name} call each other in a circle")
                if site.callee not in state:
                    stack.append(site.callee)
        else:
            stack.pop()
            if not state[name]:
                state[name] = True
                finished.append(name)
    order = tuple(reversed(finished))
    executions = dict.fromkeys(order, 0)
    depth = dict.fromkeys(order, 0)
    executions[module.entry_name] = 1
    conditional: set[str] = set()
    walks = dict.fromkeys(order, 0)
    walks[module.entry_name] = 1
    walked = 0
    for name in order:
        walked += walks[name] * len(module.computations[name])
        if walked > MAX_WALKED and walked > _MAX_REPEATED * module.instruction_count:
            raise HloParseError(f"nested calls run more than {walked:,} instructions (at {name})")
        for site in sites[name]:
            walks[site.callee] += walks[name]
            executions[site.callee] += executions[name] * site.times
            if executions[site.callee] > MAX_EXECUTIONS:
                raise HloParseError(f"{site.callee} would run more than {MAX_EXECUTIONS:,} times in one step")
            inside = (name, site.callee) in loops
            depth[site.callee] = max(depth[site.callee], depth[name] + inside)
            if site.callee in branches or name in conditional:
                conditional.add(site.callee)
    return Program(
        module=module,
        order=order,
        executions=executions,
        loop_depth=depth,
        call_sites=tuple(site for name in order for site in sites[name]),
        unknown_trip_counts=tuple(unknown),
        conditional=frozenset(conditional),
    )


def _sites(
    module: Module, computation: Computation, unknown: list[str], loops: set[tuple[str, str]], branches: set[str]
) -> list[CallSite]:
    found = []
    for instruction in control_flow(computation):
        times = 1
        missing = {role for role in _NEEDED[instruction.opcode] if not instruction.called.get(role)}
        if missing:
            raise HloParseError(
                f"the {instruction.opcode} {instruction.name} names no {missing.pop()} (a truncated file?)"
            )
        if instruction.opcode == "while":
            trips = trip_count(module, computation, instruction)
            if trips is None:
                unknown.append(instruction.name)
            times = 1 if trips is None else trips
        for role, names in instruction.called.items():
            for callee in names:
                if callee not in module.computations:
                    raise HloParseError(
                        f"{instruction.name} calls {callee}, which is not in the module (a truncated file?)"
                    )
                if role in ("body", "condition"):
                    loops.add((computation.name, callee))
                if role == "branches":
                    branches.add(callee)
                runs = times + 1 if role == "condition" else times
                found.append(CallSite(computation.name, instruction.index, callee, runs))
    return found
