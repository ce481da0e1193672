"""Clocks of several processes are aligned by the collectives that they have in common."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from hloinspect.profiles.nsys.archive_clocks import MAX_SPREAD_NS, MIN_COMMON, Ends, Offset, clock_offsets

STEP_NS = 120_000_000


@st.composite
def collectives(draw: st.DrawFn) -> dict[tuple[str, int, str, int], int]:
    """Return when collectives end, in runs that last differently long by milliseconds."""
    runs = draw(st.lists(st.integers(0, 40), min_size=3, max_size=6, unique=True))
    ends = {}
    now = draw(st.integers(0, 1 << 40))
    for run, longer in enumerate(runs):
        for op, time in product(range(2), range(3)):
            ends["jit_step", run, f"all-gather-start.{op}", time] = now + 9_000_000 * op + 2_000_000 * time
        now += STEP_NS + 3_000_000 * longer
    return ends


@given(collectives(), st.lists(st.integers(-(1 << 40), 1 << 40), max_size=4), st.data())
def test_the_difference_of_clocks_is_found_up_to_the_jitter(
    first: dict[tuple[str, int, str, int], int], shifts: list[int], data: st.DataObject
) -> None:
    jitter = st.integers(-40_000, 40_000)
    others = [{key: end + shift + data.draw(jitter) for key, end in first.items()} for shift in shifts]
    found = clock_offsets([first, *others])
    assert found[0] == Offset(0, 0, len(first))
    for offset, shift in zip(found[1:], shifts, strict=True):
        assert offset.is_known
        assert abs(offset.ns - shift) <= 40_000
        assert offset.spread_ns <= 80_000
        assert offset.common == len(first)


@given(collectives(), st.integers(-(1 << 40), 1 << 40), st.integers(1, 2))
def test_a_process_whose_profile_began_later_counts_its_runs_from_there(
    first: dict[tuple[str, int, str, int], int], shift: int, later: int
) -> None:
    other = {(m, run - later, op, time): end + shift for (m, run, op, time), end in first.items() if run >= later}
    _, offset = clock_offsets([first, other])
    if len(other) >= MIN_COMMON:
        assert offset == Offset(shift, 0, len(other))
    else:
        assert not offset.is_known


@given(collectives(), st.integers(0, 1 << 40))
def test_of_few_or_different_collectives_nothing_follows(
    first: dict[tuple[str, int, str, int], int], shift: int
) -> None:
    few = dict(list(first.items())[: MIN_COMMON - 1])
    none: Ends = {("other", *key[1:]): end for key, end in first.items()}
    for other in ({key: end + shift for key, end in few.items()}, none, {}):
        assert not clock_offsets([first, other])[1].is_known
    scattered = {key: end + 2 * number * MAX_SPREAD_NS for number, (key, end) in enumerate(first.items())}
    assert not clock_offsets([first, scattered])[1].is_known


def test_no_processes_have_no_offsets() -> None:
    assert clock_offsets([]) == ()
    assert clock_offsets([{}]) == (Offset(0, 0, 0),)
