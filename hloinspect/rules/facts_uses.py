"""Facts on the first uses of values that are copied back from the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hloinspect.kinds import H2D
from hloinspect.offload.transfers import Transfer

if TYPE_CHECKING:
    from hloinspect.hlo.model import Computation, Module
    from hloinspect.offload.program import Program

_PASSES_ON = frozenset({"get-tuple-element", "tuple", "bitcast", "copy", "opt-barrier", "optimization-barrier"})
_MAX_HOPS = 6


def first_uses(module: Module, transfers: Iterable[Transfer]) -> dict[int, int | None]:
    """Return the place of the first instruction that works with each copy back whose done is known, by transfer id.

    The place is one in the computation of the done, found through bitcasts and tuples. It is None where nothing there
    uses the value and the root hands it on.
    """
    by_computation: dict[str, dict[str, set[int]]] = {}
    for transfer in transfers:
        if transfer.direction == H2D and transfer.done is not None and transfer.done_computation is not None:
            by_computation.setdefault(transfer.done_computation, {})[transfer.done] = {transfer.id}
    found: dict[int, int | None] = {}
    for name, dones in by_computation.items():
        found.update(_first_uses_in(module.computations[name], dones))
    return found


def _first_uses_in(computation: Computation, dones: Mapping[str, set[int]]) -> dict[int, int | None]:
    found: dict[int, int | None] = {number: None for numbers in dones.values() for number in numbers}
    carrying: dict[str, set[int]] = dict(dones)
    for _hop in range(_MAX_HOPS):
        following: dict[str, set[int]] = {}
        for index in computation.users_of(carrying):
            user = computation.instruction(index)
            numbers = {n for operand in user.operands for n in carrying.get(operand.name, ())}
            if not numbers or user.name in carrying:
                continue
            if user.opcode in _PASSES_ON:
                if not user.is_root:
                    following.setdefault(user.name, set()).update(numbers)
                continue
            for number in numbers:
                before = found[number]
                found[number] = index if before is None else min(before, index)
        if not following:
            break
        carrying = following
    return found


def is_stack_of_loop(program: Program, transfer: Transfer, use: int | None) -> bool:
    """Return whether a copy back is a stack of as many layers as the loop at ``use``, its first use, has iterations.

    The layers are its leading dimension.
    """
    shape = transfer.tensor.shape
    if transfer.direction != H2D or len(shape) < 2 or shape[0] < 2 or use is None:
        return False
    computation = program.module.computations[transfer.done_computation or ""]
    if computation.instruction(use).opcode != "while":
        return False
    return any(
        site.times == shape[0] for site in program.call_sites if (site.caller, site.index) == (computation.name, use)
    )
