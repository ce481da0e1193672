"""Text of transfers in findings."""

from __future__ import annotations

from collections.abc import Sequence

from hloinspect.rules.evidence import Evidence
from hloinspect.thresholds import SHOWN_NAMES
from hloinspect.units import bytes_text, listed, time_text


def numbered(numbers: Sequence[int]) -> str:
    """Return a text like ``transfer 2`` or ``transfers 3, 4 and 12 more``."""
    if len(numbers) == 1:
        return f"transfer {numbers[0]}"
    return f"transfers {listed(numbers, SHOWN_NAMES)}"


def transfers_text(evidence: Evidence, numbers: Sequence[int]) -> str:
    """Return a text that also says what moves: ``transfer 2 (hid bf16[4,4096,16384], 512 MiB, 8 times a step)``."""
    first = evidence.infos[numbers[0]]
    if len(numbers) > 1:
        total = sum(evidence.infos[number].bytes_per_step for number in numbers)
        return f"{numbered(numbers)} ({bytes_text(total)} a step)"
    name = f"{first.tensor.name} " if first.tensor.name else ""
    dims = list(first.tensor.shape)
    while len(dims) > 1 and dims[0] == 1:  # a slice of a stack has a leading dimension of one
        dims.pop(0)
    shape = f"{first.tensor.dtype}[{','.join(map(str, dims))}]"
    times = f", {first.executions} times a step" if first.executions != 1 else ""
    return f"{numbered(numbers)} ({name}{shape}, {bytes_text(first.bytes)}{times})"


def waits(evidence: Evidence, numbers: Sequence[int]) -> str:
    """Return a text like ``; the device waits 18.4 ms a step``, or nothing without a prediction."""
    cost = evidence.wait_ms(numbers)
    if cost is None:
        return ""
    how = ", measured" if evidence.is_measured else ""
    return f"; the device waits {time_text(cost)} a step for {'it' if len(numbers) == 1 else 'them'}{how}"


def verb(numbers: Sequence[int], one: str, many: str) -> str:
    """Return the form of a verb for one or several."""
    return one if len(numbers) == 1 else many
