"""How far two modules are the same: what is scheduled, what moves, in which order, with which kernels.

The words for the two sides are the caller's: what was ``expected`` or ``compiled`` on the one, what ``ran`` on the
other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeVar

from hloinspect.kinds import ExpectedStatus
from hloinspect.offload.transfer import Tensor, Transfer
from hloinspect.report.form import Form, before_scheduling
from hloinspect.report.schema import DifferenceCounts
from hloinspect.units import bytes_text, listed

SAME: Final = "same"
OTHER_KERNELS: Final = "other kernels"
OTHER_ORDER: Final = "other order"
SAME_TRANSFERS: Final = "same transfers"
DIFFERENT: Final = "different"

_SHOWN = 2
_ENDS = ("-done", "-update")
_PARTICIPLE = {"ran": "run"}
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far two modules are the same, what differs (a line each), and how much of each kind."""

    status: ExpectedStatus
    differences: tuple[str, ...]
    counts: DifferenceCounts


def compare_forms(ours: Form, theirs: Form, words: tuple[str, str]) -> Comparison:
    """Return how far ``ours`` is the module ``theirs``. ``words`` say of a part that only one side has what it is of
    there, such as ("compiled", "ran")."""
    moved, transfers = _transfers(ours, theirs, words)
    instructions, about_instructions = _instructions(ours, theirs, words)
    kernels, of, chosen = _kernels(ours, theirs)
    pairs, about_pairs = _pairs(ours, theirs)
    values, others = ([step.value for step in form.schedule] for form in (ours, theirs))
    same_values = Counter(values) == Counter(others)
    order = _moved(*([s.value if same_values else s.key for s in form.schedule] for form in (ours, theirs)))
    counts = DifferenceCounts(instructions, moved, pairs, order, kernels, of)
    if moved:
        return Comparison(DIFFERENT, (*transfers, *about_instructions, *chosen), counts)
    if values == others:
        return Comparison(OTHER_KERNELS if kernels else SAME, tuple(chosen), counts)
    found = list(about_instructions)
    if not same_values and not instructions:
        count = sum((Counter(values) - Counter(others)).values())
        found.append(f"instructions: {count:,} of {len(values):,} have other operands")
    found += about_pairs
    if order:
        found.append(f"order: {order:,} of {len(values):,} instructions are at another place")
    found += chosen
    if (fingerprint := before_scheduling(ours.module)) and fingerprint == before_scheduling(theirs.module):
        found.append("before scheduling both were the same (XLA's fingerprint): what differs came after")
    unlike: ExpectedStatus = SAME_TRANSFERS if ours.offload.transfers else DIFFERENT
    return Comparison(OTHER_ORDER if same_values else unlike, tuple(found), counts)


# ---- instructions


def _instructions(ours: Form, theirs: Form, words: tuple[str, str]) -> tuple[int, list[str]]:
    """Return how many instructions only one side has, the larger number of both, and a line of the most frequent."""
    had, has = (Counter(step.key for step in form.schedule) for form in (ours, theirs))
    only = (had - has, has - had)
    if not any(only):
        return 0, []
    shown = {step.key: step.shown for form in (ours, theirs) for step in form.schedule}
    texts = [_summed(counts, shown) for counts in only]
    inner = texts[0] & texts[1]  # alike in opcode and size, not in what they compute
    parts = [
        f"{sum(counts.values()):,} only {word} ({_most(counts)})"
        for counts, word in zip((texts[0] - inner, texts[1] - inner), words, strict=True)
        if counts
    ]
    if inner:
        parts.append(f"{sum(inner.values()):,} compute something else ({_most(inner)})")
    sizes = [len(form.schedule) for form in (ours, theirs)]
    total = f"{sizes[0]:,}" if sizes[0] == sizes[1] else f"{sizes[0]:,} {words[0]}, {sizes[1]:,} {words[1]}"
    return max(sum(counts.values()) for counts in only), [f"instructions ({total}): {'; '.join(parts)}"]


def _summed(counts: Mapping[str, int], shown: Mapping[str, str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for key, count in counts.items():
        found[shown[key]] += count
    return found


def _most(counts: Counter[str]) -> str:
    """Return the most frequent texts. The end of an async operation is named only where nothing else is left."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    begun = [(text, count) for text, count in ranked if not text.partition(" ")[0].endswith(_ENDS)]
    return listed([f"{count:,} x {text}" for text, count in begun or ranked], _SHOWN)


# ---- transfers


def _transfers(ours: Form, theirs: Form, words: tuple[str, str]) -> tuple[int, list[str]]:
    """Return how many transfers only one side has, by direction, bytes and executions, and lines of them."""
    had, has = (Counter(map(_move, form.offload.transfers)) for form in (ours, theirs))
    only = (had - has, has - had)
    sizes = [len(form.offload.transfers) for form in (ours, theirs)]
    tensors = {_move(t): t.tensor for form in (theirs, ours) for t in form.offload.transfers}
    found = []
    for counts, (first, second), of in zip(only, (words, words[::-1]), sizes, strict=True):
        largest = sorted(counts.items(), key=lambda item: (-item[0][1] * item[0][2] * item[1], item[0]))
        shown = [f"{count} x {_move_text(key, tensors[key])}" for key, count in largest]
        if shown:
            words_of = [_PARTICIPLE.get(word, word) for word in (first, second)]
            count = f"{sum(counts.values()):,} of {of:,}"
            found.append(f"transfers {' and not '.join(words_of)}: {count} ({listed(shown, _SHOWN)})")
    return max(sum(counts.values()) for counts in only), found


def _move_text(key: tuple[str, int, int], tensor: Tensor) -> str:
    dims = list(tensor.shape)
    while len(dims) > 1 and dims[0] == 1:  # a slice of a stack has a dimension of one in front
        dims.pop(0)
    direction, size, executions = key
    return f"{direction} {tensor.dtype}[{','.join(map(str, dims))}] of {bytes_text(size)}, {executions:,} times"


def _move(transfer: Transfer) -> tuple[str, int, int]:
    return transfer.direction, transfer.bytes, transfer.executions


def _pairs(ours: Form, theirs: Form) -> tuple[int, list[str]]:
    """Return how many of the transfers that both have run beside other work, or are made in another way, and lines of
    them."""
    windows = how = 0
    had, has = (_Windows(form) for form in (ours, theirs))
    matched = _matched(
        [(_move(t), (_way(t), had.between(t))) for t in ours.offload.transfers],
        [(_move(t), (_way(t), has.between(t))) for t in theirs.offload.transfers],
    )
    for (way, window), (other_way, other_window) in matched:
        how += way != other_way
        windows += way == other_way and window != other_window
    found = []
    if how:
        ways = "copy engine or kernel, with a wait or without"
        found.append(f"pairs: {how:,} of {len(matched):,} transfers are made in another way ({ways})")
    if windows:
        found.append(f"pairs: {windows:,} of {len(matched):,} transfers have other work between start and done")
    return how + windows, found


def _way(transfer: Transfer) -> tuple[str, bool]:
    return transfer.mechanism, transfer.asynchronous


class _Windows:
    """What is scheduled between two places of a computation, whatever its order there: a number, which is a sum over
    the steps. A step of 126 unrolled layers has a thousand transfers in one computation."""

    def __init__(self, form: Form) -> None:
        self._places = {name: list(steps) for name, steps in form.steps.items()}
        self._sums = {
            name: list(accumulate((hash(step.key) for step in steps.values()), initial=0))
            for name, steps in form.steps.items()
        }

    def between(self, transfer: Transfer) -> int:
        """Return what is between a transfer's start and its done. Of a pair around a loop's end: what comes after the
        start in its computation, and before the done in its own."""
        start, begin = transfer.computation, transfer.start_index
        done, end = transfer.done_computation, transfer.done_index
        if done is None or end is None:
            return 0
        if done == start and end > begin:
            return self._before(done, end) - self._before(start, begin + 1)
        return self._sums[start][-1] - self._before(start, begin + 1) + self._before(done, end)

    def _before(self, name: str, index: int) -> int:
        return self._sums[name][bisect_left(self._places[name], index)]


# ---- order


def _moved(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Return the least number of instructions that have to move for one order to become the other. Instructions that
    only one side has do not count."""
    matched = _matched([(name, 0) for name in ours], [(name, place) for place, name in enumerate(theirs)])
    order = [place for _, place in matched]
    return len(order) - _longest_increasing(order)


def _longest_increasing(order: Iterable[int]) -> int:
    """Return the length of the longest increasing subsequence."""
    ends: list[int] = []
    for place in order:
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
    return len(ends)


# ---- kernels


def _kernels(ours: Form, theirs: Form) -> tuple[int, int, list[str]]:
    """Return how many kernels of instructions that both have were chosen otherwise, of how many, and a line of the most
    frequent choices."""
    matched = _matched(*([(step.key, step) for step in form.schedule if step.settings] for form in (ours, theirs)))
    other = [(had, has) for had, has in matched if had.settings != has.settings]
    if not other:
        return 0, len(matched), []
    changes = Counter(
        f"{had.kernel} -> {has.kernel}" if had.kernel != has.kernel else f"other settings of {had.kernel or had.shown}"
        for had, has in other
    )
    return len(other), len(matched), [f"kernels: {len(other):,} of {len(matched):,} are other ones: {_most(changes)}"]


def _matched(ours: Sequence[tuple[_Key, _Value]], theirs: Sequence[tuple[_Key, _Value]]) -> list[tuple[_Value, _Value]]:
    """Return the values of both sides in pairs: the first of a key with the first, the second with the second."""
    waiting: dict[_Key, list[_Value]] = defaultdict(list)
    for key, value in reversed(theirs):
        waiting[key].append(value)
    return [(value, waiting[key].pop()) for key, value in ours if waiting.get(key)]
