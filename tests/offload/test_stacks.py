"""One stack in host memory with several writers and readers, compared with an interpreter that runs the step."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from hloinspect.cli import main
from hloinspect.hlo.load import load_module
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.stacks import MAX_EXECUTIONS, MAX_PARTNERS
from hloinspect.offload.transfers import Offload, Tensor, find_offload
from hloinspect.placements.audit import audit
from hloinspect.placements.flow import Place, Placements, Request
from hloinspect.render.terminal.report_text import tensor_text
from hloinspect.report.build import build_report, transfer_info
from hloinspect.report.schema import InputInfo, MemoryInfo, ProgramInfo, Report
from tests.support.offload_samples import offload_in
from tests.support.places import CASES

SLOTS = 6
STACK, ROW = f"f32[{SLOTS},64]{{1,0:S(5)}}", "f32[1,64]{1,0}"
STATE = f"(s32[], s32[], {STACK}, {ROW})"

# ---- programs on one stack


@dataclass(frozen=True)
class Move:
    """A transfer of the slot ``own * i + outer * o + fixed``.

    i counts the loop that contains it, o the loop around that. Slots beyond the ends are the ends. ``blind``: the slot
    is an argument of the step.
    """

    is_write: bool
    own: int
    entry_value: int
    fixed: int
    blind: bool = False


@dataclass(frozen=True)
class Loop:
    trips: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Choice:
    """A conditional: its items, or nothing."""

    items: tuple[Item, ...]


Item = Move | Loop | Choice


@dataclass
class Text:
    """The HLO of a program. Its transfers are named t0, t1, ... in the order of their text."""

    computations: list[str] = field(default_factory=list)
    moves: dict[int, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def entry(self, items: Sequence[Item], is_argument: bool, is_result: bool) -> str:
        kept = "parameter(2)" if is_argument else 'custom-call(), custom_call_target="AllocateBuffer"'
        lines = [
            "%i = s32[] constant(0)",
            "%o = s32[] constant(0)",
            "%row = f32[1,64]{1,0} parameter(0)",
            "%data = s32[] parameter(1)",
            f"%stack = {STACK} {kept}",
        ]
        last = self._items(items, lines, "i", "o", "stack", "row")
        returned = f"({STACK}) tuple(%{last})" if is_result else f"({ROW}) tuple(%row)"
        return "\n".join([*lines, f"ROOT %done = {returned}"])

    def _items(self, items: Sequence[Item], lines: list[str], own: str, entry_value: str, stack: str, row: str) -> str:
        """Write items and return the name of the stack after them."""
        for item in items:
            n = next(self._numbers)
            if isinstance(item, Move):
                stack = self._move(item, n, lines, own, entry_value, stack, row)
                continue
            inside = item.items
            body = self._body(inside, n, is_loop=isinstance(item, Loop))
            zero = own if isinstance(item, Choice) else f"zero{n}"
            lines.append(f"%zero{n} = s32[] constant(0)")
            around = entry_value if isinstance(item, Choice) else own
            lines.append(f"%in{n} = {STATE} tuple(%{zero}, %{around}, %{stack}, %{row})")
            if isinstance(item, Loop):
                config = f', backend_config={{"known_trip_count":{{"n":"{item.trips}"}}}}'
                lines.append(f"%out{n} = {STATE} while(%in{n}), condition=%always, body=%{body}{config}")
            else:
                lines.append(f'%which{n} = pred[] custom-call(), custom_call_target="roll"')
                lines.append(
                    f"%out{n} = {STATE} conditional(%which{n}, %in{n}, %in{n}), true_computation=%{body}, "
                    "false_computation=%nothing"
                )
            stack = f"stack{n}"
            lines.append(f"%{stack} = {STACK} get-tuple-element(%out{n}), index=2")
        return stack

    def _move(self, item: Move, n: int, lines: list[str], own: str, entry_value: str, stack: str, row: str) -> str:
        for name, value in (("a", item.own), ("b", item.entry_value), ("c", item.fixed), ("z", 0)):
            lines.append(f"%{name}{n} = s32[] constant({value})")
        lines += [
            f"%x{n} = s32[] multiply(%{own}, %a{n})",
            f"%y{n} = s32[] multiply(%{entry_value}, %b{n})",
            f"%xy{n} = s32[] add(%x{n}, %y{n})",
            f"%at{n} = s32[] " + ('custom-call(), custom_call_target="roll"' if item.blind else f"add(%xy{n}, %c{n})"),
        ]
        self.moves[id(item)] = f"t{n}"
        if item.is_write:
            lines += [
                f"%t{n} = (({STACK}, {ROW}, s32[], s32[]), {STACK}, u32[]) "
                f"dynamic-update-slice-start(%{stack}, %{row}, %at{n}, %z{n})",
                f"%d{n} = {STACK} dynamic-update-slice-done(%t{n})",
            ]
            return f"d{n}"
        lines += [
            f"%t{n} = (({STACK}, s32[], s32[]), {ROW}, u32[]) dynamic-slice-start(%{stack}, %at{n}, %z{n}), "
            "dynamic_slice_sizes={1,64}",
            f"%d{n} = {ROW} dynamic-slice-done(%t{n})",
        ]
        return stack

    def _body(self, items: Sequence[Item], n: int, is_loop: bool) -> str:
        lines = [
            f"%p{n} = {STATE} parameter(0)",
            f"%i{n} = s32[] get-tuple-element(%p{n}), index=0",
            f"%o{n} = s32[] get-tuple-element(%p{n}), index=1",
            f"%s{n} = {STACK} get-tuple-element(%p{n}), index=2",
            f"%row{n} = {ROW} get-tuple-element(%p{n}), index=3",
            f"%one{n} = s32[] constant({int(is_loop)})",
            f"%next{n} = s32[] add(%i{n}, %one{n})",
        ]
        last = self._items(items, lines, f"i{n}", f"o{n}", f"s{n}", f"row{n}")
        lines.append(f"ROOT %r{n} = {STATE} tuple(%next{n}, %o{n}, %{last}, %row{n})")
        self.computations.append(f"%body{n} (p: f32[]) -> f32[] {{\n  " + "\n  ".join(lines) + "\n}\n")
        return f"body{n}"

    @property
    def helpers(self) -> str:
        always = (
            f"%always (q: f32[]) -> pred[] {{\n  %q = {STATE} parameter(0)\n  ROOT %yes = pred[] constant(true)\n}}\n"
        )
        nothing = f"%nothing (u: f32[]) -> f32[] {{\n  ROOT %u = {STATE} parameter(0)\n}}\n"
        return "\n".join([*self.computations, always, nothing])


# ---- the interpreter


@dataclass
class Run:
    """A run of the step: the last writer of each slot (None: the content before the step), and which reader read which
    writer."""

    choices: list[bool]
    slots: list[Move | None] = field(default_factory=lambda: [None] * SLOTS)
    pairs: set[tuple[int, int]] = field(default_factory=set)
    chosen: int = 0

    def items(self, items: Sequence[Item], own: int, entry_value: int) -> None:
        for item in items:
            if isinstance(item, Loop):
                for iteration in range(item.trips):
                    self.items(item.items, iteration, own)
            elif isinstance(item, Choice):
                self.chosen += 1
                if self.choices[self.chosen - 1]:
                    self.items(item.items, own, entry_value)
            else:
                self.move(item, own, entry_value)

    def move(self, move: Move, own: int, entry_value: int) -> None:
        slot = min(max(move.own * own + move.entry_value * entry_value + move.fixed, 0), SLOTS - 1)
        if move.is_write:
            self.slots[slot] = move
        elif (writer := self.slots[slot]) is not None:
            self.pairs.add((id(writer), id(move)))


def count_choices(items: Sequence[Item]) -> int:
    """Return how often a step comes to a conditional at most."""
    total = 0
    for item in items:
        if isinstance(item, Loop):
            total += item.trips * count_choices(item.items)
        elif isinstance(item, Choice):
            total += 1 + count_choices(item.items)
    return total


def moves_of(items: Sequence[Item]) -> list[Move]:
    return [m for item in items for m in ([item] if isinstance(item, Move) else moves_of(item.items))]


def run_all(items: Sequence[Item]) -> tuple[set[tuple[int, int]], set[int]]:
    """Return every pair of writer and reader of some run, and every writer whose value is left by some run."""
    pairs: set[tuple[int, int]] = set()
    kept: set[int] = set()
    for choices in itertools.product([True, False], repeat=count_choices(items)):
        run = Run(list(choices))
        run.items(items, 0, 0)
        pairs |= run.pairs
        kept |= {id(writer) for writer in run.slots if writer is not None}
    return pairs, kept


# ---- the comparison


SMALL = st.integers(-2, 3)


def moves(blind: bool) -> st.SearchStrategy[Move]:
    at = st.integers(-1, SLOTS)
    return st.builds(Move, st.booleans(), SMALL, SMALL, at, st.booleans() if blind else st.just(False))


def programs(choices: bool = False, blind: bool = False) -> st.SearchStrategy[list[Item]]:
    def inside(items: st.SearchStrategy[Item]) -> st.SearchStrategy[Item]:
        some = st.lists(items, min_size=1, max_size=3).map(tuple)
        loops = st.builds(Loop, st.integers(1, 4), some)
        return st.one_of(loops, st.builds(Choice, some)) if choices else loops

    item: st.SearchStrategy[Item] = st.recursive(moves(blind), inside, max_leaves=5)
    return st.lists(item, min_size=1, max_size=6)


def judged(items: Sequence[Item], is_argument: bool, is_result: bool) -> tuple[Offload, dict[str, int]]:
    text = Text()
    entry = text.entry(items, is_argument, is_result)
    return offload_in(entry, text.helpers), {name: move for move, name in text.moves.items()}


def found_pairs(offload: Offload, ids: dict[str, int]) -> set[tuple[int, int]]:
    by_id = {t.id: ids[t.start] for t in offload.transfers}
    both = [{(by_id[t.id], by_id[n]) for n in t.partners} for t in offload.transfers if t.direction == D2H]
    back = [{(by_id[n], by_id[t.id]) for n in t.partners} for t in offload.transfers if t.direction != D2H]
    assert set().union(*both) == set().union(*back)
    return set().union(*both)


LAYERS = (Loop(4, (Move(True, 1, 0, 0),)), Loop(4, (Move(False, -1, 0, 3),)))
PEELED = (Loop(3, (Move(True, 1, 0, 0),)), Move(True, 0, 0, 3), Loop(4, (Move(False, -1, 0, 3),)))
HANDED_OVER = (Loop(3, (Move(True, 1, 0, 0),)), Move(True, 0, 0, 3), Loop(3, (Move(False, -1, 0, 2),)))
DOUBLE = (
    Loop(2, (Move(True, 2, 0, 0), Move(True, 2, 0, 1))),
    Loop(2, (Move(False, -2, 0, 3), Move(False, -2, 0, 2))),
)
TWICE = (*LAYERS, Loop(4, (Move(False, 1, 0, 0),)))
IN_PLACE = (Loop(4, (Move(False, 1, 0, 0), Move(True, 1, 0, 0))),)


@given(items=programs(), is_argument=st.booleans(), is_result=st.booleans())
@example(items=LAYERS, is_argument=False, is_result=False)
@example(items=PEELED, is_argument=False, is_result=False)
@example(items=HANDED_OVER, is_argument=False, is_result=False)
@example(items=DOUBLE, is_argument=False, is_result=False)
@example(items=TWICE, is_argument=False, is_result=True)
@example(items=IN_PLACE, is_argument=True, is_result=True)
def test_a_reader_comes_back_from_those_who_wrote_what_it_reads(
    items: Sequence[Item], is_argument: bool, is_result: bool
) -> None:
    offload, ids = judged(items, is_argument, is_result)
    pairs, kept = run_all(items)
    assert found_pairs(offload, ids) == pairs
    shared = {m.is_write for m in moves_of(items)} == {True, False}
    for transfer in offload.transfers:
        move = ids[transfer.start]
        if any(move in pair for pair in pairs):
            expected = "round trip"
        elif transfer.direction != D2H:
            expected = "argument" if is_argument else "never written"
        else:
            expected = "result" if is_result and (move in kept or not shared) else "never read"
        assert transfer.outcome == expected
        assert (transfer.round_trip in transfer.partners) == bool(transfer.partners)


@given(items=programs(choices=True))
def test_what_some_run_reads_is_never_said_to_be_unread(items: Sequence[Item]) -> None:
    if count_choices(items) > 8:
        return
    offload, ids = judged(items, is_argument=False, is_result=False)
    pairs, _ = run_all(items)
    assert found_pairs(offload, ids) >= pairs


@given(items=programs(blind=True))
@example(items=(Move(True, 0, 0, 1), Move(True, 0, 0, 2, blind=True), Move(False, 0, 0, 5)))
def test_a_stack_with_a_slice_that_cannot_be_placed_is_a_round_trip_of_all_of_its_transfers(
    items: Sequence[Item],
) -> None:
    every = moves_of(items)
    if not any(move.blind for move in every):
        return
    offload, ids = judged(items, is_argument=False, is_result=False)
    writers, readers = ([id(m) for m in every if m.is_write == which] for which in (True, False))
    assert found_pairs(offload, ids) == set(itertools.product(writers, readers))


def test_the_partner_is_the_one_with_which_most_is_shared() -> None:
    offload, ids = judged(PEELED, is_argument=False, is_result=False)
    in_loop, peeled, back = (id(move) for move in moves_of(PEELED))
    by_id = {t.id: ids[t.start] for t in offload.transfers}
    assert {ids[t.start]: [by_id[n] for n in t.partners] for t in offload.transfers} == {
        in_loop: [back],
        peeled: [back],
        back: [in_loop, peeled],
    }


def test_both_halves_of_a_double_buffered_loop_find_theirs() -> None:
    offload, ids = judged(DOUBLE, is_argument=False, is_result=False)
    even, odd, last, before = (id(move) for move in moves_of(DOUBLE))
    by_id = {t.id: ids[t.start] for t in offload.transfers}
    partner = {ids[t.start]: by_id[t.round_trip or 0] for t in offload.transfers}
    assert partner == {even: before, odd: last, last: odd, before: even}


def test_loops_of_more_executions_than_are_placed_are_round_trips() -> None:
    loops = (Loop(MAX_EXECUTIONS, (Move(True, 0, 0, 0),)), Loop(2, (Move(False, 0, 0, 1),)))
    offload, _ = judged(loops, is_argument=False, is_result=False)
    assert [t.outcome for t in offload.transfers] == ["round trip", "round trip"]


@pytest.mark.parametrize(("writers", "readers"), [(300, 300), (300, 140), (1, 300), (128, 300)])
def test_many_transfers_of_a_buffer_that_cannot_be_placed_are_linked_with_a_part_of_the_others(
    writers: int, readers: int
) -> None:
    items = [Move(number < writers, 0, 0, 0, blind=number == 0) for number in range(writers + readers)]
    offload, _ = judged(items, is_argument=False, is_result=False)
    pairs = sum(len(t.partners) for t in offload.transfers)
    is_cut = min(writers, readers) > MAX_PARTNERS
    assert pairs <= 2 * MAX_PARTNERS * max(writers, readers)
    assert (pairs < 2 * writers * readers) == is_cut
    assert all(t.outcome == "round trip" and t.partners for t in offload.transfers)
    limits = [limit for limit in report_on(offload).limits if "partners" in limit]
    assert len(limits) == is_cut
    assert not is_cut or limits[0].startswith(f"{writers + readers} transfers (1, 2, 3, ...)")


def report_on(offload: Offload) -> Report:
    memory = MemoryInfo(None, None, None, None, "unknown")
    return build_report(InputInfo("x", "text", None), offload, ProgramInfo(), None, 1, None, memory, (), (), None)


@pytest.mark.parametrize("trips", [0, 10**9])
def test_loops_that_do_nothing_end(trips: int) -> None:
    """Run a loop without iterations inside one of many: the transfer runs elsewhere too."""
    move = Move(True, 0, 0, 0)
    loops = (Loop(trips, (Loop(0, (move,)),)), Move(True, 0, 0, 1), Move(False, 0, 0, 1))
    offload, _ = judged(loops, is_argument=False, is_result=False)
    assert {t.outcome for t in offload.transfers} == {"round trip"}


def test_one_stack_with_a_peeled_writer_is_one_round_trip() -> None:
    """Read XLA's pipelining: the last of eight layers is written after the loop of the first seven, and one loop reads
    all."""
    offload = find_offload(load_module(CASES / "pipelined_one_stack.hlo"))
    assert [(t.id, t.direction, t.executions, t.outcome, t.round_trip, t.partners) for t in offload.transfers] == [
        (1, "d2h", 1, "round trip", 3, (3,)),
        (2, "d2h", 7, "round trip", 3, (3,)),
        (3, "h2d", 8, "round trip", 2, (2, 1)),
    ]


# ---- the texts about it


def test_the_report_names_both_writers_of_a_stack_and_no_loose_end() -> None:
    result = CliRunner().invoke(main, ["inspect", str(CASES / "pipelined_one_stack.hlo"), "--target", "gb200"])
    assert result.exit_code == 0
    assert "neither fetched nor returned" not in result.output
    assert "HLO206" not in result.output
    arguments = ["inspect", str(CASES / "pipelined_one_stack.hlo"), "--target", "gb200", "--format", "json", "--all"]
    report = json.loads(CliRunner().invoke(main, arguments).output)
    assert [(t["outcome"], t["round_trip"], t["partners"]) for t in report["transfers"]] == [
        ("round trip", 3, [3]),
        ("round trip", 3, [3]),
        ("round trip", 2, [2, 1]),
    ]
    assert all(finding["code"] != "HLO206" for finding in report["findings"])


@pytest.mark.parametrize(
    ("round_trip", "partners", "expected"),
    [
        (None, (), "f32[64]"),
        (3, (3,), "f32[64] (back from 3)"),
        (3, (3, 1), "f32[64] (back from 1, 3)"),
        (3, (3, 1, 2, 5), "f32[64] (back from 3 and 3 more)"),
    ],
)
def test_what_comes_back_says_from_which_transfers(
    round_trip: int | None, partners: tuple[int, ...], expected: str
) -> None:
    (_, _, fetch) = find_offload(load_module(CASES / "pipelined_one_stack.hlo")).transfers
    fetch = replace(fetch, round_trip=round_trip, partners=partners, tensor=Tensor("f32", (1, 64)))
    assert tensor_text(transfer_info(fetch, None)) == expected


def test_the_audit_explains_all_transfers_of_a_stack_by_one_value() -> None:
    offload = find_offload(load_module(CASES / "pipelined_one_stack.hlo"))
    place = Place("wrong_offsets.py", 9, 0, "f")
    sent = Request(
        direction=D2H,
        by="policy",
        name="hid",
        dtype="bf16",
        shape=(4096, 1024),
        runs=8,
        counted=True,
        conditional=False,
        live=True,
        constant=False,
        separated=True,
        computed=False,
        value=0,
        of=None,
        argument=None,
        result=None,
        place=place,
        made=place,
    )
    back = replace(sent, direction=H2D, of=0)
    found = audit(offload, Placements("jaxpr", (sent, back), ()))
    assert found.unexplained == ()
    assert [(e.direction, e.name, e.runs, e.transfers) for e in found.entries] == [
        ("d2h", "hid", 8, (1, 2)),
        ("h2d", "hid", 8, (3,)),
    ]
