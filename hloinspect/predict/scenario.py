"""Scenarios: what is not known exactly about a run, and thus the corners of a prediction's range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hloinspect.hardware.target import Side, Target


@dataclass(frozen=True, slots=True)
class Scenario:
    """One set of assumptions.

    ``sharers`` devices use the host's memory at the same time. With ``kernels_block``, a transfer that runs as a kernel
    takes the place of compute instead of running beside it. With ``fair``, copies of one direction share the link
    instead of queueing. ``dtype_efficiency`` is the matrix efficiency of types that differ from ``matmul_efficiency``.
    ``figures`` selects a figure where public sources differ about the target's peaks and its device memory's bandwidth.
    """

    name: str
    matmul_efficiency: float
    memory_efficiency: float
    collective_efficiency: float
    link_efficiency: float
    sharers: int
    kernels_block: bool
    longest_branch: bool
    fair: bool = False
    dtype_efficiency: Mapping[str, float] = field(default_factory=dict)
    figures: Side = "value"

    def efficiency_of(self, dtype: str) -> float:
        """Return the share of the matrix peak that products of a type reach."""
        return self.dtype_efficiency.get(dtype, self.matmul_efficiency)


def scenarios(target: Target, devices: int) -> tuple[Scenario, ...]:
    """Return the central scenario, then the corners: compute fast or slow, the link fast or slow.

    All devices work in step, so those that share a host are assumed to use it at once. The fast link serves one device
    alone.
    """
    link = target.link
    efficiency = (link.efficiency.low, link.efficiency.value, link.efficiency.high) if link else (1.0, 1.0, 1.0)
    sharing = max(1, min(devices, link.sharers)) if link else 1
    matmul, memory, collective = target.matmul_efficiency, target.memory_efficiency, target.collective_efficiency

    def corner(name: str, fast_compute: bool, fast_link: bool) -> Scenario:
        return Scenario(
            name=name,
            matmul_efficiency=matmul.high if fast_compute else matmul.low,
            memory_efficiency=memory.high if fast_compute else memory.low,
            collective_efficiency=collective.high if fast_compute else collective.low,
            link_efficiency=efficiency[2] if fast_link else efficiency[0],
            sharers=1 if fast_link else sharing,
            kernels_block=not fast_link,
            longest_branch=not fast_compute,
            dtype_efficiency={d: r.high if fast_compute else r.low for d, r in target.dtype_efficiency.items()},
            figures="high" if fast_compute else "low",
        )

    central = {dtype: each.value for dtype, each in target.dtype_efficiency.items()}

    return (
        Scenario(
            "central", matmul.value, memory.value, collective.value, efficiency[1], sharing, False, True, False, central
        ),
        corner("fast compute, fast link", True, True),
        corner("fast compute, slow link", True, False),
        corner("slow compute, fast link", False, True),
        corner("slow compute, slow link", False, False),
    )


def fair_queueing(case: Scenario) -> Scenario:
    """Return the same scenario in which copies of one direction on different streams share the link instead of
    queueing.

    Whether a device's copy engines do that is not published.
    """
    return replace(case, name=f"{case.name}, fair queueing", fair=True)
