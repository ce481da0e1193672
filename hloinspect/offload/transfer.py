"""A transfer between device and host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hloinspect.kinds import Direction, Mechanism, Outcome
from hloinspect.offload.buffers import Node
from hloinspect.offload.source import Source


@dataclass(frozen=True, slots=True)
class Tensor:
    """The array that one execution moves. ``name`` is a checkpoint or argument name where one is known, else ""."""

    dtype: str
    shape: tuple[int, ...]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer between device and host memory.

    ``bytes`` are those of one execution. ``start_index`` and ``done_index`` are places in the schedules of
    ``computation`` and ``done_computation``. A synchronous transfer has no `done`. ``round_trip`` is the id of the
    transfer that brings the same buffer back, or that wrote it. ``partners`` are the ids of all such transfers, and
    begin with that one. With ``partners_cut`` they are only some of them (stacks.py). ``stream`` is the runtime's,
    where a thunk sequence names it. ``outcome`` says what the other end of the host buffer is (see roundtrips.py).
    """

    id: int
    direction: Direction
    mechanism: Mechanism
    asynchronous: bool
    bytes: int
    executions: int
    tensor: Tensor
    start: str
    done: str | None
    computation: str
    start_index: int
    done_index: int | None
    done_computation: str | None
    loop_depth: int
    conditional: bool
    source: Source | None
    round_trip: int | None
    buffer: Node | None
    stream: str | None = None
    outcome: Outcome | Literal[""] = ""
    partners: tuple[int, ...] = ()
    partners_cut: bool = False

    @property
    def bytes_per_step(self) -> int:
        """Return the bytes of all its executions in a step."""
        return self.bytes * self.executions
