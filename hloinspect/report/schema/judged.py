"""Which module was judged, and how far it is the one that ran."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import ComparedKind, ExpectedStatus, ModuleFrom


@dataclass(frozen=True, slots=True)
class DifferenceCounts:
    """How much differs between two modules. Names do not count."""

    instructions: int
    """Instructions that only one of them has, by opcode, shapes and what they compute; the larger number of both."""

    transfers: int
    """Transfers that only one has, by direction, bytes and executions; the larger number of both."""

    pairs: int
    """Of the transfers that both have, those with other work between start and done, or made in another way."""

    order: int
    """Instructions that have to move for one order to become the other, without those that only one has."""

    kernels: int
    """Of the instructions that both have, those with another kernel or other settings of it (autotuning)."""

    kernels_of: int
    """Instructions that both have and for which a kernel is chosen."""

    flags: int | None = None
    """XLA flags that differ; null where one side does not show its flags."""


@dataclass(frozen=True, slots=True)
class ExpectedInfo:
    """How far the module of this report is another one: the expected one (`--expect`), or the one that ran
    (`--against`)."""

    path: str
    """The other module, as it was given."""

    status: ExpectedStatus
    """``same`` (schedule and kernels), ``other kernels`` (in the same schedule), ``other order`` (of the same
    instructions), ``same transfers`` (of other instructions), or ``different``."""

    schedule_hash: str
    """The other module's hash of its schedule."""

    differences: tuple[str, ...]
    """What differs, a line each."""

    kind: ComparedKind = "module"
    """What the other module was read from."""

    text: str = ""
    """The result in one sentence."""

    fingerprint: str = ""
    """A hash of the other module's schedule, its operands and its kernels; names do not count."""

    counts: DifferenceCounts | None = None
    """How much differs."""


@dataclass(frozen=True, slots=True)
class ExplainedInfo:
    """How far a module explains a profile: whether it has the instructions that the events name."""

    events: int
    """Events that name an instruction of the program."""

    found: int
    """Those of them whose instruction is in the module."""

    names: int
    """Different names of instructions among the events."""

    names_found: int
    """Those of them that are in the module."""

    missing: tuple[str, ...]
    """Names that are not in the module, the most frequent first, at most four."""


@dataclass(frozen=True, slots=True)
class JudgedInfo:
    """The module that a report on a profile or a dump is of, and what shows that it is the one that ran."""

    text: str
    """The same in one sentence."""

    module_from: ModuleFrom
    """Where the module was read."""

    schedule_hash: str
    """Hash of its schedule, as in ``module``; "" without a module."""

    before_scheduling: str | None
    """XLA's own fingerprint of the module before it was scheduled (GPU); null where the module has none."""

    flags_known: bool
    """Whether the XLA flags of the compilation lie beside the module."""

    explained: ExplainedInfo | None = None
    """Evidence from the profile's events; null where no event names an instruction."""
