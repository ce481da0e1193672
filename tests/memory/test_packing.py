"""The two implementations of packing give equal results: lists for a few buffers, columns for many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hloinspect.memory.assign import PlainGaps, plain_heap
from hloinspect.memory.assign_columns import ColumnGaps, column_heap
from hloinspect.memory.values import Chunk

END = 40


@st.composite
def spans(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Draw disjoint spans in order, which do not touch."""
    cuts = sorted(draw(st.sets(st.integers(0, END), min_size=2, max_size=6)))
    found: list[tuple[int, int]] = []
    for first, last in zip(cuts[::2], cuts[1::2], strict=False):
        if not found or first > found[-1][1] + 1:
            found.append((first, last))
    return tuple(found)


chunks = st.lists(st.builds(Chunk, st.integers(1, 5000), spans(), st.integers(0, END)), max_size=25)


@given(chunks)
def test_a_heap_is_as_large_by_lists_as_by_columns(pieces: list[Chunk]) -> None:
    assert plain_heap(pieces) == column_heap(pieces)


@given(st.lists(st.tuples(st.booleans(), spans()), max_size=25))
def test_a_buffer_finds_room_by_lists_where_it_does_by_columns(
    steps: list[tuple[bool, tuple[tuple[int, int], ...]]],
) -> None:
    plain, columns = PlainGaps(), ColumnGaps()
    for number, (is_new, pieces) in enumerate(steps):
        if is_new:
            plain.add(number, pieces, END)
            columns.add(number, pieces, END)
        else:
            assert plain.take(pieces) == columns.take(pieces)


@given(chunks)
def test_no_heap_is_smaller_than_what_lives_at_once(pieces: list[Chunk]) -> None:
    alive = [sum(p.bytes for p in pieces if any(f <= time <= la for f, la in p.spans)) for time in range(END + 1)]
    assert plain_heap(pieces) >= max(alive, default=0)
