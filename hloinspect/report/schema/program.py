"""What was read, how its module was made, and the hardware that it is judged for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloinspect.kinds import InputKind, ModulePlatform, TargetSource

if TYPE_CHECKING:  # a report on a module does without the code that reads manifests
    from hloinspect.inputs.manifest import Configuration


@dataclass(frozen=True, slots=True)
class InputInfo:
    """What was read."""

    path: str
    """The input as it was given; of a dump the file of the module."""

    kind: InputKind
    """What it is: a ``step``, a module as ``text`` or ``proto``, a directory that ``hloinspect compile`` wrote
    (``compiled``) or one of ``--xla_dump_to`` (``dump``), or a ``trace``."""

    sha256: str | None
    """SHA-256 of the file that was read; null for standard input, pipes, several files, URLs, and traces above 64
    MiB."""


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """The module. Both hashes look at what is scheduled and not at names, so text and proto of one module have the
    same."""

    name: str
    """Name of the module."""

    platform: ModulePlatform
    """What it was compiled for."""

    fingerprint: str
    """A hash that changes with the number of instructions of each kind."""

    schedule_hash: str
    """A hash that also changes with their order."""

    instructions: int
    """Number of scheduled instructions."""


@dataclass(frozen=True, slots=True)
class AutotuneInfo:
    """Autotuning results that the step was compiled with."""

    path: str
    """The file of the results."""

    missing: int
    """Number of kernels that have no entry there."""

    of: int | None
    """Number of kernels; null where at most one is missing: XLA does not count them then."""


@dataclass(frozen=True, slots=True)
class ProfileInfo:
    """A PGLE profile that the step was compiled with."""

    path: str
    """The file of the profile."""

    matched: int
    """Number of its costs that are of instructions of the module."""

    of: int
    """Number of its costs."""


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """How the module was made, as far as that is known."""

    jax: str | None = None
    """Version of jax."""

    jaxlib: str | None = None
    """Version of jaxlib."""

    flags: tuple[str, ...] | None = None
    """XLA flags of the compilation."""

    topology: str | None = None
    """Topology that it was compiled for: ``PxHxD`` (NVLink domains, hosts in each, devices of a host) on GPUs."""

    autotuned: bool | None = None
    """Whether every kernel is the one that a run on the device has chosen."""

    flags_from: str | None = None
    """Where flags of a production run were read (docs/compile.md#what-the-production-run-had); null where none were
    given."""

    autotune_results: AutotuneInfo | None = None
    """Autotuning results that were given."""

    pgle: ProfileInfo | None = None
    """A PGLE profile that was given."""

    configuration: Configuration | None = None
    """What else decided the compilation (docs/compile.md#what-decides-a-compilation)."""


@dataclass(frozen=True, slots=True)
class DuplexInfo:
    """The share of each direction's rate that is left while both run."""

    d2h: float
    """Share of the rate to the host."""

    h2d: float
    """Share of the rate from the host."""


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """The host link of one device."""

    d2h_gbps: float
    """Rate to the host alone."""

    h2d_gbps: float
    """Rate from the host alone."""

    duplex_factor: float
    """Mean of both shares of ``duplex``."""

    duplex: DuplexInfo
    """The share of each rate that is left while both directions run."""


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The hardware that the step is judged for."""

    name: str
    """Name of the target (``hloinspect targets``)."""

    devices: int
    """Number of devices that the step runs on."""

    link: LinkInfo | None
    """Its host link; null where none is published and none was given."""

    source: TargetSource = "given"
    """Who named it: the user (``given``), the compilation's manifest or dump (``input``), or the name of the device in
    a profile (``profile``)."""
