"""What a remedy may promise: where a flag or a change leads, in which versions of XLA, and whether memory suffices.

No remedy may lead to a finding of its own. So what several rules recommend is worded here, once: it names the versions
in which it is right, and it is left out where the step would no longer fit.
"""

from __future__ import annotations

from collections.abc import Iterable

from hloinspect.offload.slices import MEMCPY_CONFIG
from hloinspect.rules.evidence import PIPELINED_FLAG, Evidence
from hloinspect.units import bytes_text

SLICES_RIGHT_SINCE = (0, 11, 1)
"""The first jax that copies every slice of a pipelined loop from and to its own place. From 0.8.2 to 0.10.1 each turn's
copy has the place of the next turn; in 0.10.2 and 0.11.0 the copies back of every scan walk the wrong way (HLO301)."""

SCANS_WRONG_SINCE = (0, 10, 2)
"""From here until ``SLICES_RIGHT_SINCE`` scans are wrong without pipelining too."""

BUT_NOT = ", but not 0.10.2 or 0.11.0, which read wrong slices (HLO301)"
"""What follows "a later jax" wherever that is advised for a step with slices of host memory."""

ALLOCATOR_SHARE = 0.75
"""Share of the device's memory that XLA's allocator hands out at most in a process of JAX, with preallocation or
without, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise (openxla/xla: gpu_helpers.cc, CreateBFCAllocator)."""


# ---- versions


def slices_are_right(evidence: Evidence) -> bool | None:
    """Return whether the program's XLA copies the slices of pipelined loops right; None where nothing shows which XLA
    it is. The module itself shows it where no version is known: by a slice that is wrong, or by the configuration that
    only older versions write."""
    if evidence.slices.wrong:
        return False
    version = evidence.jax_version
    if version is not None:
        return version >= SLICES_RIGHT_SINCE
    return False if any(check.config == MEMCPY_CONFIG for check in evidence.slices.checks) else None


def pipelining(evidence: Evidence, numbers: Iterable[int]) -> str:
    """Return how to have XLA carry these copies of a loop from one turn to the next, for the program's XLA; "" where
    one more layer of them does not fit on the device."""
    more = sum(evidence.infos[number].bytes for number in numbers if evidence.turns(number) > 1)
    if not fits_with(evidence, more):
        return ""
    flag, right = f"--{PIPELINED_FLAG}=true", slices_are_right(evidence)
    if right is None:
        return f"{flag} (jax 0.11.1 or later only: before it gradients become wrong){_memory_of(evidence, more)}"
    if not right:
        flag = f"update to jax 0.11.1 or later (before it pipelining makes gradients wrong), then {flag}"
    return flag + _memory_of(evidence, more)


def scanning(evidence: Evidence, what: str = "scan the layers") -> str:
    """Return the advice to scan, with the versions of XLA:GPU that read wrong slices in a scan."""
    version = evidence.jax_version
    if not evidence.is_gpu:
        return what
    if version is None:
        return f"{what} (not with jax 0.10.2 or 0.11.0, which read wrong slices: HLO301)"
    if SCANS_WRONG_SINCE <= version < SLICES_RIGHT_SINCE:
        return f"{what}, with jax 0.11.1 or later: this one reads wrong slices in a scan (HLO301)"
    return what


# ---- memory


def allocator_limit_bytes(evidence: Evidence) -> int | None:
    """Return the device memory that a process of JAX may use by default; None off GPUs and without a target."""
    limit = evidence.report.memory.device_limit_bytes
    return int(ALLOCATOR_SHARE * limit) if limit is not None and evidence.is_gpu else None


def fits_with(evidence: Evidence, more_bytes: int = 0) -> bool:
    """Return whether the step fits on the device with so much more; True where its memory or the target's is not
    known."""
    memory = evidence.report.memory
    if memory.device_bytes is None or memory.device_limit_bytes is None:
        return True
    return memory.device_bytes + more_bytes <= memory.device_limit_bytes


def _memory_of(evidence: Evidence, more_bytes: int) -> str:
    """Return a word on memory where only the change brings the step above what XLA's allocator hands out."""
    used, limit = evidence.report.memory.device_bytes, allocator_limit_bytes(evidence)
    if used is None or limit is None or used > limit or used + more_bytes <= limit:
        return ""
    return (
        f" (it keeps {bytes_text(more_bytes)} more on the device, which is then above the {bytes_text(limit)} that "
        "XLA's allocator takes by default: HLO209)"
    )
