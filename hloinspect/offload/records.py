"""Records of a report that the rooms below it make: of host memory beside transfers, of a line of the user's program,
and of what could not be found out."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import Affects, HostEventKind, HostValueKind, Mechanism


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A line of the user's program."""

    file: str
    """The file, as XLA's metadata has it."""

    line: int
    """The line, from 1."""

    function: str | None
    """The function, where the metadata has it."""


@dataclass(frozen=True, slots=True)
class HostValue:
    """An argument or a result of the step that lives in host memory."""

    kind: HostValueKind
    """Whether it is an argument (``parameter``) or a ``result``."""

    name: str
    """Path of the argument, or place in the result."""

    bytes: int
    """Its size."""


@dataclass(frozen=True, slots=True)
class HostCopy:
    """An instruction that reads and writes host memory. The device does nothing else meanwhile: its time is in the
    step's ``stall_ms``, and in neither direction of it."""

    instruction: str
    """The instruction."""

    computation: str
    """Its computation."""

    mechanism: Mechanism
    """What moves the bytes."""

    bytes: int
    """Bytes of one execution: of a kernel those that it reads and writes."""

    executions: int
    """How often it runs in a step."""


@dataclass(frozen=True, slots=True)
class HostEvent:
    """An instruction that works with the host and moves no buffer of an offload: computation there, a callback, a feed,
    a send or receive."""

    kind: HostEventKind
    """What it does. ``annotation`` is a placement that no compiler pass has carried out: the module is not optimized.
    ``many_results`` is an asynchronous start of several results with host memory among them, which no known compiler
    makes."""

    instruction: str
    """The instruction."""

    computation: str
    """Its computation."""

    executions: int
    """How often it runs in a step."""

    to_host_bytes: int
    """Bytes of one execution that go to the host, as far as shapes show them."""

    from_host_bytes: int
    """Bytes of one execution that come from the host, as far as shapes show them."""

    detail: str
    """The call's target, or the handler's name."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """What could not be found out."""

    reason: str
    """Why."""

    remedy: str
    """What would settle it."""

    affects: Affects
    """Which figures are in doubt; ``transfers``: some may be missing. ``audit`` changes no exit code."""
