"""Runs of a program cut out of the order in which its operations ran, and which of them count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.measure.events import _OpTable, labels
from hloinspect.measure.join import Loop
from hloinspect.measure.steps import cut_runs, edge_reason, unusual, warm_up
from hloinspect.profiles.distinct import distinct_places
from hloinspect.profiles.xplane import Columns, EventMetadata, Plane, StatColumn
from hloinspect.profiles.xplane.space import INT64, REF, STR, PlaneMetadata


def runs(ranks: list[int], *loops: Loop) -> tuple[list[list[int]], bool]:
    """Return the sequence cut into runs, and whether that is certain."""
    found = cut_runs(np.array(ranks, np.int64), loops)
    cut = [ranks[a : b + 1] for a, b in zip(found.first.tolist(), found.last.tolist(), strict=True)]
    return cut, found.certain


def test_a_place_that_is_not_behind_the_one_before_begins_a_run():
    assert runs([1, 2, 5, 1, 2, 5]) == ([[1, 2, 5], [1, 2, 5]], True)


def test_several_kernels_of_one_instruction_are_one_run():
    assert runs([1, 2, 2, 2, 5, 1, 2, 2, 2, 5]) == ([[1, 2, 2, 2, 5], [1, 2, 2, 2, 5]], True)


def test_iterations_of_a_loop_are_one_run():
    loop = Loop(2, 4, 3)
    once = [1, 2, 4, 2, 4, 2, 4, 6]
    assert runs(once * 2, loop) == ([once, once], True)


def test_iterations_of_nested_loops_are_one_run():
    inner, entry_value = Loop(4, 5, 4), Loop(2, 7, 2)
    once = [1, 2, 4, 5, 4, 5, 7, 2, 4, 5, 4, 5, 7, 9]
    assert runs(once * 2, entry_value, inner) == ([once, once], True)


def test_where_everything_is_in_one_loop_its_iterations_are_counted():
    assert runs([2, 4] * 6, Loop(1, 5, 3)) == ([[2, 4] * 3, [2, 4] * 3], True)


def test_where_one_operation_is_in_one_loop_its_runs_are_counted():
    assert runs([3] * 6, Loop(1, 5, 3)) == ([[3] * 3, [3] * 3], True)


def test_iterations_of_a_single_loop_of_unknown_length_are_reported_as_uncertain():
    cut, certain = runs([2, 4] * 3, Loop(1, 5, 0))
    assert not certain
    assert cut == [[2, 4]] * 3


def test_no_operation_is_no_run():
    assert runs([]) == ([], True)


def made_of(*steps: str) -> tuple[list[bool], list[int]]:
    """Return for steps that are made of the letters a to e which are unusual, and the usual number of each letter."""
    step = np.array([number for number, letters in enumerate(steps) for _ in letters], np.int64)
    op = np.array([ord(letter) - ord("a") for letters in steps for letter in letters], np.int64)
    wrong, _, expected = unusual(step, op, len(steps), 5)
    return wrong.tolist(), expected.tolist()


def test_a_step_with_another_make_up_is_unusual():
    assert made_of("abbc", "abbc", "abc", "abbc") == ([False, False, True, False], [1, 2, 1, 0, 0])


def test_of_two_steps_the_one_with_more_events_is_usual():
    assert made_of("abc", "ab") == ([False, True], [1, 1, 1, 0, 0])


def test_where_most_steps_lack_something_each_operations_own_number_counts():
    wrong, expected = made_of("abcd", "abc", "abd", "acd", "bcd", "abcd", "abcde")
    assert expected == [1, 1, 1, 1, 0]
    assert wrong == [False, True, True, True, True, False, True]


def test_only_at_an_end_of_the_trace_is_a_step_cut():
    assert edge_reason(0, 3, True, False) == "cut by the trace's begin"
    assert edge_reason(2, 3, False, True) == "cut by the trace's end"
    assert edge_reason(1, 3, True, True) == "events are missing or unpaired"
    assert edge_reason(0, 3, False, True) == "events are missing or unpaired"


@pytest.mark.parametrize(("times", "is_one"), [([16, 10, 10], True), ([15, 10, 10], False), ([90, 10], False)])
def test_a_first_step_is_warm_up_if_it_took_half_as_long_again_as_at_least_two_others(times: list[int], is_one: bool):
    assert warm_up(np.array(times, np.int64), np.ones(len(times), np.bool_)) is is_one


@pytest.mark.parametrize("values", [[], [5], [7, 7], [3, 1, 3, 2], [-4, 1 << 62, -4, 0]])
def test_different_values_are_those_that_sorting_finds(values: list[int]):
    column = np.array(values, np.int64)
    found, first, inverse = distinct_places(column)
    assert found.tolist() == sorted(set(values))
    assert found[inverse].tolist() == values
    assert column[first].tolist() == found.tolist()


def test_texts_are_distinguished_however_they_are_written():
    kinds = np.array([REF, 0, REF, REF, 0], np.uint8)
    column = StatColumn(kinds, np.array([9, 0, 4, 9, 0], np.int64), (), {9: "nine", 4: "four"})
    codes, names = labels(column)
    assert [names[code] if code >= 0 else None for code in codes.tolist()] == ["nine", None, "four", "nine", None]
    mixed = StatColumn(np.array([REF, STR, INT64], np.uint8), np.array([9, 0, 3], np.int64), (b"text",), {9: "nine"})
    codes, names = labels(mixed)
    assert [names[code] if code >= 0 else None for code in codes.tolist()] == ["nine", "text", None]


stats = st.lists(
    st.tuples(
        st.integers(1, 4), st.sampled_from([0, 2, 3, 1 << 40]), st.sampled_from([0, 1, 1 << 62]), st.integers(-1, 1)
    ),
    max_size=30,
)


@given(stats)
def test_events_are_distinguished_by_all_that_describes_them(events: list[tuple[int, int, int, int]]):
    """Draw of each event the kind, the instruction (0 for none), the program (0 for none) and the text (-1 for
    none)."""
    names = {1: "kernel", 2: "ncclDevKernel", 3: "other", 4: "CudaGraphExec"}
    kinds = {number: EventMetadata(number, name, name, {}) for number, name in names.items()}
    plane = Plane(0, "/device:GPU:0", (), lambda: PlaneMetadata(kinds, {}, {}))
    kind, hlo, program, text = np.array(events, np.int64).reshape(-1, 4).T
    columns = Columns(
        kind,
        kind,
        kind,
        kind > 0,
        {
            "hlo_op": StatColumn((REF * (hlo > 0)).astype(np.uint8), hlo, (), {2: "a", 3: "b", 1 << 40: "c"}),
            "program_id": StatColumn((INT64 * (program > 0)).astype(np.uint8), program, (), {}),
            "memcpy_details": StatColumn((STR * (text >= 0)).astype(np.uint8), np.maximum(text, 0), (b"x", b"y"), {}),
        },
    )
    table = _OpTable(plane, lambda program: None)
    codes = table.codes(columns)
    found: dict[tuple[object, ...], int] = {}
    for event, code in zip(events, codes.tolist(), strict=True):
        number, *rest = event
        key = (*rest, names[number].startswith("nccl"), number == 4)
        assert found.setdefault(key, code) == code
        assert table.ops[code].program == event[2]
        assert table.ops[code].name == {2: "a", 3: "b", 1 << 40: "c"}.get(event[1], table.ops[code].name)
    assert len(set(found.values())) == len(found)
