"""Advice that several rules give: the effect of a flag or a change, the versions of XLA that allow it, and its memory.

No remedy may lead to another finding. So the advice is worded here, once. It names the versions in which it is right,
and it is left out where the step would no longer fit.
"""

from __future__ import annotations

from collections.abc import Iterable

from hloinspect.compile.versions import SCAN_NOT_WITH, SCANS_WRONG_SINCE, SLICES_RIGHT_SINCE
from hloinspect.offload.slices import MEMCPY_CONFIG
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.facts_flags import PIPELINED_FLAG
from hloinspect.thresholds import ALLOCATOR_SHARE
from hloinspect.units import bytes_text

WITH_MARKER = "give the proto (compiled.runtime_executable().hlo_modules()[0]) or the file of --xla_dump_to"
"""The remedy for a text without the markers of its slices (HLO403)."""


# ---- versions


def is_right_release(evidence: Evidence) -> bool:
    """Return whether the program's jax is known, and is one of those whose slices are right.

    If one of them is wrong after all, no other version is known to be right.
    """
    return evidence.jax_version is not None and evidence.jax_version >= SLICES_RIGHT_SINCE


def slices_are_right(evidence: Evidence) -> bool | None:
    """Return whether the program's XLA copies the slices of pipelined loops right, or None where its XLA is unknown.

    Without a known version the module itself shows it: by a slice that is wrong, or by the configuration that only
    older versions write.
    """
    if evidence.slices.wrong:
        return False
    if evidence.jax_version is not None:
        return is_right_release(evidence)
    return False if any(check.config == MEMCPY_CONFIG for check in evidence.slices.checks) else None


def pipelining(evidence: Evidence, numbers: Iterable[int]) -> str:
    """Return how to make XLA carry these copies of a loop from one iteration to the next, for the program's XLA.

    Return "" where one more layer of them does not fit on the device, and where slices are wrong though the version is
    one whose slices are right.
    """
    more = sum(evidence.infos[number].bytes for number in numbers if evidence.iterations(number) > 1)
    right = slices_are_right(evidence)
    if not fits_with(evidence, more) or (right is False and is_right_release(evidence)):
        return ""
    flag = f"--{PIPELINED_FLAG}=true"
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
        return f"{what} {SCAN_NOT_WITH}"
    if SCANS_WRONG_SINCE <= version < SLICES_RIGHT_SINCE:
        return f"{what}, with jax 0.11.1 or later: this one reads wrong slices in a scan (HLO301)"
    return what


# ---- memory


def allocator_limit_bytes(evidence: Evidence) -> int | None:
    """Return the device memory that a process of JAX may use by default, or None off GPUs and without a target."""
    limit = evidence.report.memory.device_limit_bytes
    return int(ALLOCATOR_SHARE * limit) if limit is not None and evidence.is_gpu else None


def fits_with(evidence: Evidence, more_bytes: int = 0) -> bool:
    """Return whether the step fits on the device with ``more_bytes``, or True where its memory or the target's is
    unknown."""
    memory = evidence.report.memory
    if memory.device_bytes is None or memory.device_limit_bytes is None:
        return True
    return memory.device_bytes + more_bytes <= memory.device_limit_bytes


def _memory_of(evidence: Evidence, more_bytes: int) -> str:
    """Return a note on memory if only the change brings the step above the limit of XLA's allocator."""
    used, limit = evidence.report.memory.device_bytes, allocator_limit_bytes(evidence)
    if used is None or limit is None or used > limit or used + more_bytes <= limit:
        return ""
    return (
        f" (it keeps {bytes_text(more_bytes)} more on the device, which is then above the {bytes_text(limit)} that "
        "XLA's allocator takes by default: HLO209)"
    )
