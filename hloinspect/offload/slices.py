"""Checks that XLA:GPU's copies of slices use the addresses of their index.

A slice that runs as a memcpy takes its address from a configuration (byte offset, and byte stride for each iteration),
not from its index operand. In jax 0.10.2 and 0.11.0 the two differ for slices in host memory: the backward pass reads
the layers in the wrong order, and gradients are wrong without any message (openxla/xla PR 46231 and 46308). Double
buffering adds a second fault of this kind (PR 47218), and an index that is out of bounds a third, outside of loops
(issue 49120). Up to 0.10.1 pipelined host offloading is a fourth: each copy uses the place of the next iteration. See
docs/slices.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hloinspect.hlo.evaluate import Arguments, LoopValues, evaluate, no_arguments, work_for
from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.shape import Shape, dtype_bits
from hloinspect.offload.mechanism import is_pure_copy, slice_config
from hloinspect.offload.program import Program

_ITERATIONS = 2

MEMCPY_CONFIG = "dynamic_memcpy_config"
"""Configuration of jax up to 0.10.1, made by the pass fusion-dynamic-memcpy-rewriter."""
SLICE_CONFIG = "dynamic_slice_config"
"""Configuration of jax 0.10.2 and later, made by the pass dynamic-slice-annotator."""


@dataclass(frozen=True, slots=True)
class SliceCheck:
    """A slice with its byte offsets by its index (``by_index``) and by its configuration (``emitted``).

    There is one offset for each of the first iterations of the innermost loop around it, or a single one outside of
    loops. ``instruction`` is the scheduled instruction. ``on_host`` is whether the sliced buffer is in host memory.
    ``config`` is the name of the configuration.
    """

    computation: str
    instruction: str
    on_host: bool
    by_index: tuple[int, ...]
    emitted: tuple[int, ...]
    config: str = SLICE_CONFIG

    @property
    def agrees(self) -> bool:
        """Return whether index and configuration give the same offsets."""
        return self.by_index == self.emitted


Why = Literal["configuration", "index", "iterations", "limit"]
_REASONS: Mapping[Why, str] = {
    "configuration": "the configuration names no offset in the loop around it",
    "index": "the module does not determine the index",
    "iterations": "the module does not determine how often the loop runs",
    "limit": "evaluating the index takes too long",
}


@dataclass(frozen=True, slots=True)
class UncheckedSlice:
    """A slice of host memory that is copied by its configuration, which could not be compared with its index.

    ``instruction`` is the scheduled instruction.
    """

    computation: str
    instruction: str
    why: Why


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of a module that are copied by their configuration.

    ``checks`` are those whose configuration and index are both known for the first iterations of the loop.
    ``unchecked`` are the others in host memory.
    """

    checks: tuple[SliceCheck, ...] = ()
    unchecked: tuple[UncheckedSlice, ...] = ()

    @property
    def wrong(self) -> tuple[SliceCheck, ...]:
        """Return the slices of host memory that are copied from or to another place than that of their index."""
        return tuple(check for check in self.checks if check.on_host and not check.agrees)

    @property
    def gap(self) -> str:
        """Return what could not be checked, and why, or "" where everything was checked."""
        if not self.unchecked:
            return ""
        reasons = Counter(each.why for each in self.unchecked)
        count, first = len(self.unchecked), self.unchecked[0].instruction
        what = f"a copied slice of host memory ({first})" if count == 1 else f"{count} copied slices of host memory"
        why = "; ".join(
            (f"{number}: " if len(reasons) > 1 else "") + _REASONS[reason] for reason, number in sorted(reasons.items())
        )
        first = f", the first is {first}" if count > 1 else ""
        return f"{what} could not be checked ({why}{first}): compare gradients with those of the step without offload"


def check_slices(program: Program) -> Slices:
    """Return checks of every slice that is copied by its configuration, for the first iterations of its loop."""
    module = program.module
    arguments = _loop_arguments(program)
    uncounted = _in_uncounted_loops(program)
    configured = any(c.mentioning(SLICE_CONFIG) or c.mentioning(MEMCPY_CONFIG) for c in module.computations.values())
    checks: list[SliceCheck] = []
    unchecked: list[UncheckedSlice] = []
    with work_for(module, "slices") as work:
        for computation in program.computations() if configured else ():
            if not program.executions[computation.name]:
                continue
            iterations = arguments.get(computation.name, ())
            for index in computation.ending_in("fusion", "-start"):
                if not (instruction := computation.instruction(index)).called.get("calls"):
                    continue
                for each in _checks(module, computation, instruction, iterations):
                    found = _decided(each, computation.name in uncounted)
                    if isinstance(found, SliceCheck):
                        checks.append(found)
                    elif found.why == "index" and work.exhausted:
                        unchecked.append(UncheckedSlice(found.computation, found.instruction, "limit"))
                    else:
                        unchecked.append(found)
    return Slices(tuple(checks), tuple(unchecked))


def _decided(found: SliceCheck | UncheckedSlice, is_uncounted: bool) -> SliceCheck | UncheckedSlice:
    """Return what is certain about a slice.

    In a loop whose iterations are not counted only the first one is certain to run. So a slice that is wrong from the
    second one on may be right.
    """
    if isinstance(found, UncheckedSlice) or not is_uncounted or found.agrees:
        return found
    if not found.on_host or found.by_index[0] != found.emitted[0]:
        return found
    return UncheckedSlice(found.computation, found.instruction, "iterations")


def _in_uncounted_loops(program: Program) -> frozenset[str]:
    """Return the computations whose innermost loop runs an unknown number of times."""
    found: set[str] = set()
    for site in program.call_sites:  # callers come before callees
        call = program.module.computations[site.caller].instruction(site.index)
        is_loop = call.opcode == "while"
        if call.name in program.unknown_trip_counts if is_loop else site.caller in found:
            found.add(site.callee)
    return frozenset(found)


def _loop_arguments(program: Program) -> Mapping[str, Sequence[Arguments]]:
    """Return, for each computation in a loop, its arguments in the first iterations of the innermost loop.

    The loops around that one are in their first iteration.
    """
    module = program.module
    found: dict[str, list[Arguments]] = {}
    for site in program.call_sites:  # callers come before callees
        caller = module.computations[site.caller]
        call = caller.instruction(site.index)
        enclosing = found.get(site.caller) or [no_arguments]
        if call.opcode == "while":
            iterations = _ITERATIONS if call.name in program.unknown_trip_counts else min(site.times, _ITERATIONS)
            values = LoopValues(module, caller, call, enclosing[0])
            found[site.callee] = [values.arguments(iteration) for iteration in range(iterations)]
        elif call.opcode == "call":
            found[site.callee] = (
                [passed_on(module, caller, call, each) for each in enclosing] if found.get(site.caller) else []
            )
    return found


def passed_on(
    module: Module, caller: Computation, call: Instruction, enclosing: Arguments, first: int = 0
) -> Arguments:
    """Return the parameters of the computation that a call or a fusion calls: its operands from the ``first`` on.

    ``enclosing`` are the arguments of the caller.
    """
    known: dict[tuple[int, tuple[int, ...]], int | None] = {}  # otherwise the work of nested calls would multiply

    def value(number: int, path: tuple[int, ...]) -> int | None:
        if not 0 <= number < len(call.operands) - first:
            return None
        if (number, path) not in known:
            operand = call.operands[first + number]
            known[number, path] = evaluate(module, caller, Operand(operand.name, operand.path + path), enclosing)
        return known[number, path]

    return value


def _checks(
    module: Module, computation: Computation, instruction: Instruction, iterations: Sequence[Arguments]
) -> Iterator[SliceCheck | UncheckedSlice]:
    """Yield the slices that an instruction copies by a configuration."""
    callee = module.computations.get(instruction.called["calls"][0])
    if callee is None:
        return
    memcpy: Mapping[str, object] | None = _memcpy_config(instruction)
    passed = [passed_on(module, computation, instruction, iteration) for iteration in iterations or (no_arguments,)]
    if instruction.start_of == "async" and callee.root.opcode == "fusion":
        memcpy = _memcpy_config(callee.root) or memcpy
        inner = module.computations.get(next(iter(callee.root.called.get("calls", ())), ""))
        if inner is None:
            return
        passed = [passed_on(module, callee, callee.root, each) for each in passed]
        callee = inner
    slices = callee.ending_in("dynamic-slice", "dynamic-update-slice")
    if not slices or not is_pure_copy(callee):
        return
    for index in slices:
        part = callee.instruction(index)
        if part.opcode not in ("dynamic-slice", "dynamic-update-slice") or not part.operands:
            continue
        config = SLICE_CONFIG if slice_config(part) is not None else MEMCPY_CONFIG
        whole = module.shape_of(callee, part.operands[0])
        if whole is None or (config == MEMCPY_CONFIG and memcpy is None):
            continue
        emitted = _emitted(part, memcpy, len(iterations))
        offsets = [_offset(module, callee, part, whole, each) for each in passed] if emitted is not None else []
        known = tuple(offset for offset in offsets if offset is not None)
        if emitted is not None and len(known) == len(offsets):
            yield SliceCheck(computation.name, instruction.name, whole.on_host, known, emitted, config)
        elif whole.on_host:
            yield UncheckedSlice(computation.name, instruction.name, "index" if emitted else "configuration")


def _memcpy_config(fusion: Instruction) -> Mapping[str, object] | None:
    config = fusion.backend_config.get("fusion_backend_config")
    found = config.get(MEMCPY_CONFIG) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else None


def _number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else None


def _emitted(part: Instruction, memcpy: Mapping[str, object] | None, iterations: int) -> tuple[int, ...] | None:
    """Return the byte offsets in the first iterations, as XLA will use them, or None where no configuration has them.

    With 0 iterations it is the single offset outside of loops.
    """
    config = slice_config(part)
    if config is not None:
        linear = config.get("linear")
        fields = linear if isinstance(linear, dict) else config
        offset, stride = _number(fields.get("byte_offset", 0)), _number(fields.get("byte_stride", 0))
        # loop_index counts loops from the innermost one outwards; only that one is read here
        loop = config.get("loop_index")
        if offset is None or stride is None or str(loop or 0) != "0" or (loop is not None and not iterations):
            return None
        return tuple(offset + iteration * stride for iteration in range(max(iterations, 1)))
    if memcpy is None or not memcpy.get("depends_on_loop") or not iterations:
        return None
    key = "src_offset_bytes" if part.opcode == "dynamic-slice" else "dst_offset_bytes"
    listed = memcpy.get(key)
    offsets = [_number(value) for value in listed[:iterations]] if isinstance(listed, list) else []
    known = tuple(offset for offset in offsets if offset is not None)
    return known if len(known) == iterations else None


def _shape(module: Module, body: Computation, operands: Sequence[Operand], number: int) -> Shape | None:
    return module.shape_of(body, operands[number]) if number < len(operands) else None


def _offset(module: Module, body: Computation, part: Instruction, whole: Shape, arguments: Arguments) -> int | None:
    """Return the byte offset of a slice's index operands, or None where they are unknown."""
    first = 1 if part.opcode == "dynamic-slice" else 2
    taken = part.shape if part.opcode == "dynamic-slice" else _shape(module, body, part.operands, 1)
    return None if taken is None else offset_bytes(module, body, part.operands[first:], taken, whole, arguments)


def offset_bytes(
    module: Module, body: Computation, indices: Sequence[Operand], taken: Shape, whole: Shape, arguments: Arguments
) -> int | None:
    """Return the byte in ``whole`` at which the part ``taken`` begins, or None. Indices are clamped as in HLO."""
    if len(indices) != len(whole.dims) or len(taken.dims) != len(whole.dims):
        return None
    strides = byte_strides(whole)
    total = 0
    for axis, operand in enumerate(indices):
        value = evaluate(module, body, operand, arguments)
        if value is None:
            return None
        total += min(max(value, 0), whole.dims[axis] - taken.dims[axis]) * strides[axis]
    return total


def byte_strides(shape: Shape) -> list[int]:
    """Return for each dimension the bytes between two neighbours, by the layout."""
    order = shape.minor_to_major or tuple(range(len(shape.dims) - 1, -1, -1))
    strides = [0] * len(shape.dims)
    step = dtype_bits(shape.dtype)
    for axis in order:
        if axis < len(strides):
            strides[axis] = step // 8
            step *= shape.dims[axis]
    return strides
