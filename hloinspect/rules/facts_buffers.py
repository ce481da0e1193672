"""Facts on host buffers: the transfers that write and read each, and what is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hloinspect.kinds import D2H
from hloinspect.offload.transfers import Transfer

if TYPE_CHECKING:
    from hloinspect.hlo.model import Module

_MAX_HOPS = 6


def transfers_by_buffer(
    transfers: Iterable[Transfer],
) -> dict[object, tuple[tuple[Transfer, ...], tuple[Transfer, ...]]]:
    """Return for each host buffer the transfers that write it and those that fetch from it."""
    found: dict[object, tuple[list[Transfer], list[Transfer]]] = {}
    for transfer in transfers:
        if transfer.buffer is not None:
            found.setdefault(transfer.buffer, ([], []))[0 if transfer.direction == D2H else 1].append(transfer)
    return {buffer: (tuple(written), tuple(fetched)) for buffer, (written, fetched) in found.items()}


def sends_constant(module: Module, transfer: Transfer) -> bool:
    """Return whether a copy to the host sends the broadcast of a constant, made outside of loops."""
    computation = module.computations[transfer.computation]
    operands = computation.instruction(transfer.start_index).operands
    if transfer.direction != D2H or not operands or transfer.loop_depth:
        return False
    made, _ = module.resolve(computation, operands[0])
    for _hop in range(_MAX_HOPS):
        if made is None or made.opcode not in ("bitcast", "copy", "reshape") or not made.operands:
            break
        made, _ = module.resolve(computation, made.operands[0])
    if made is None:
        return False
    if made.opcode == "fusion":
        body = module.computations.get(next(iter(made.called.get("calls", ())), ""))
        return body is not None and {inner.opcode for inner in body} <= {
            "broadcast",
            "constant",
            "bitcast",
            "parameter",
        }
    return made.opcode == "broadcast"
