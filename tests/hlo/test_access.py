"""Bytes that an instruction reads and writes, compared with fusions that are evaluated row by row."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.hlo.access import Access, accesses
from hloinspect.hlo.load import load_module_bytes

ROWS, COLUMNS = 8, 16
ROW_BYTES = COLUMNS * 4
ALL = ROWS * ROW_BYTES


def accesses_of(body: str, computations: str = "") -> tuple[Access, ...]:
    """Return the accesses of the root of an entry computation."""
    lines = "\n".join("  " + line.strip() for line in body.strip().splitlines())
    text = f"HloModule m, is_scheduled=true\n\n{computations.strip()}\n\nENTRY %main () -> f32[] {{\n{lines}\n}}\n"
    module = load_module_bytes(text.encode())
    return accesses(module, module.entry, module.entry.root)


def of_fusion(body: str, operands: str, result: str) -> dict[tuple[int, tuple[int, ...]], int]:
    """Return the bytes by operand and path (-1: result) of a fusion with this body."""
    names = [part.partition(" ")[2] for part in operands.split(", ")]
    lines = "\n".join("  " + line.strip() for line in body.strip().splitlines())
    kinds = [part.partition(" ")[0] for part in operands.split(", ")]
    parameters = "\n".join(
        f"%{name} = {kind} parameter({n})" for n, (kind, name) in enumerate(zip(kinds, names, strict=True))
    )
    root = f"ROOT %k = {result} fusion({', '.join('%' + name for name in names)}), kind=kLoop, calls=%f"
    found = accesses_of(f"{parameters}\n{root}", f"%f (x: f32[]) -> f32[] {{\n{lines}\n}}")
    return {(access.operand, access.path): access.bytes for access in found}


STACK = "f32[8,16] s, f32[1,16] u, s32[] i"
PARAMETERS = "%s = f32[8,16] parameter(0)\n%u = f32[1,16] parameter(1)\n%i = s32[] parameter(2)\n"


def test_an_update_in_place_reads_and_writes_only_the_update() -> None:
    body = PARAMETERS + "ROOT %d = f32[8,16] dynamic-update-slice(%s, %u, %i, %i)"
    assert of_fusion(body, STACK, "f32[8,16]") == {(1, ()): ROW_BYTES, (2, ()): 4, (-1, ()): ROW_BYTES}


def test_an_update_in_place_may_stand_between_bitcasts_and_in_a_tuple() -> None:
    body = (
        "%s = f32[8,16] parameter(0)\n%u = f32[1,16] parameter(1)\n%i = s32[] parameter(2)\n"
        "%v = f32[4,2,16] bitcast(%s)\n"
        "%n = f32[1,16] negate(%u)\n%w = f32[1,1,16] bitcast(%n)\n"
        "%d = f32[4,2,16] dynamic-update-slice(%v, %w, %i, %i, %i)\n"
        "%e = f32[8,16] bitcast(%d)\nROOT %t = (f32[8,16], f32[1,16]) tuple(%e, %n)"
    )
    found = of_fusion(body, STACK, "(f32[8,16], f32[1,16])")
    assert found == {(1, ()): ROW_BYTES, (2, ()): 4, (-1, (0,)): ROW_BYTES, (-1, (1,)): ROW_BYTES}


def test_two_updates_in_place_write_both() -> None:
    body = PARAMETERS + (
        "%z = s32[] constant(0)\n%d = f32[8,16] dynamic-update-slice(%s, %u, %i, %z)\n"
        "ROOT %e = f32[8,16] dynamic-update-slice(%d, %u, %z, %z)"
    )
    assert of_fusion(body, STACK, "f32[8,16]") == {(1, ()): ROW_BYTES, (2, ()): 4, (-1, ()): 2 * ROW_BYTES}


def test_an_update_of_a_value_made_in_the_fusion_writes_all_of_it() -> None:
    body = PARAMETERS + "%n = f32[8,16] negate(%s)\nROOT %d = f32[8,16] dynamic-update-slice(%n, %u, %i, %i)"
    assert of_fusion(body, STACK, "f32[8,16]") == {(0, ()): ALL, (1, ()): ROW_BYTES, (2, ()): 4, (-1, ()): ALL}


def test_an_updated_value_that_is_worked_on_further_is_read_whole() -> None:
    body = PARAMETERS + "%d = f32[8,16] dynamic-update-slice(%s, %u, %i, %i)\nROOT %n = f32[8,16] negate(%d)"
    assert of_fusion(body, STACK, "f32[8,16]") == {(0, ()): ALL, (1, ()): ROW_BYTES, (2, ()): 4, (-1, ()): ALL}


NESTED = """
%row (a: f32[8,16], j: s32[]) -> f32[1,16] {
  %a = f32[8,16] parameter(0)
  %j = s32[] parameter(1)
  %b = f32[8,16] bitcast(%a)
  ROOT %r = f32[1,16] dynamic-slice(%b, %j, %j), dynamic_slice_sizes={1,16}
}

%all (a: f32[8,16]) -> f32[8,16] {
  %a = f32[8,16] parameter(0)
  ROOT %n = f32[8,16] negate(%a)
}

%update (a: f32[8,16], v: f32[1,16], j: s32[]) -> f32[8,16] {
  %a = f32[8,16] parameter(0)
  %v = f32[1,16] parameter(1)
  %j = s32[] parameter(2)
  ROOT %d = f32[8,16] dynamic-update-slice(%a, %v, %j, %j)
}
"""


@pytest.mark.parametrize(
    ("uses", "read"),
    [
        ("%x = f32[1,16] fusion(%s, %i), kind=kLoop, calls=%row\nROOT %k = f32[1,16] add(%x, %u)", ROW_BYTES),
        (
            "%x = f32[1,16] fusion(%s, %i), kind=kLoop, calls=%row\n"
            "%y = f32[1,16] fusion(%s, %i), kind=kLoop, calls=%row\nROOT %k = f32[1,16] add(%x, %y)",
            2 * ROW_BYTES,
        ),
        (
            "%x = f32[1,16] fusion(%s, %i), kind=kLoop, calls=%row\n"
            "%y = f32[8,16] fusion(%s), kind=kLoop, calls=%all\n"
            "%z = f32[1,16] slice(%y), slice={[0:1], [0:16]}\nROOT %k = f32[1,16] add(%x, %z)",
            ALL,
        ),
        (
            "%x = f32[8,16] fusion(%s, %u, %i), kind=kLoop, calls=%update\n"
            "ROOT %k = f32[1,16] slice(%x), slice={[0:1], [0:16]}",
            ALL,
        ),
    ],
    ids=["a slice", "two slices", "all beside a slice", "an update that is no longer in place"],
)
def test_what_a_fusion_in_a_fusion_slices_is_read_as_a_slice(uses: str, read: int) -> None:
    lines = "\n".join("  " + line for line in (PARAMETERS + uses).splitlines())
    parameters = "%s = f32[8,16] parameter(0)\n%u = f32[1,16] parameter(1)\n%i = s32[] parameter(2)"
    root = "ROOT %r = f32[1,16] fusion(%s, %u, %i), kind=kOutput, calls=%f"
    body = f"%f (x: f32[]) -> f32[1,16] {{\n{lines}\n}}\n{NESTED}"
    found = {(access.operand, access.path): access.bytes for access in accesses_of(f"{parameters}\n{root}", body)}
    assert found[0, ()] == read


def test_a_slice_is_read_as_a_slice_and_two_slices_as_both() -> None:
    one = "%s = f32[8,16] parameter(0)\n%u = f32[1,16] parameter(1)\n%i = s32[] parameter(2)\n"
    body = one + (
        "%a = f32[1,16] dynamic-slice(%s, %i, %i), dynamic_slice_sizes={1,16}\n"
        "%b = f32[2,16] slice(%s), slice={[2:4], [0:16]}\n%c = f32[1,16] slice(%b), slice={[0:1], [0:16]}\n"
        "%e = f32[1,16] add(%a, %c)\nROOT %g = f32[1,16] add(%e, %u)"
    )
    found = of_fusion(body, STACK, "f32[1,16]")
    assert found == {(0, ()): 3 * ROW_BYTES, (1, ()): ROW_BYTES, (2, ()): 4, (-1, ()): ROW_BYTES}


def test_a_parameter_that_is_sliced_and_used_whole_is_read_whole_once() -> None:
    body = PARAMETERS + (
        "%a = f32[1,16] dynamic-slice(%s, %i, %i), dynamic_slice_sizes={1,16}\n%n = f32[8,16] negate(%s)\n"
        "%v = f32[1,16] add(%a, %u)\nROOT %t = (f32[8,16], f32[1,16]) tuple(%n, %v)"
    )
    assert of_fusion(body, STACK, "(f32[8,16], f32[1,16])")[(0, ())] == ALL


def test_a_gather_reads_what_it_gathers_and_a_scatter_writes_its_updates() -> None:
    gathered = accesses_of(
        "%s = f32[1000,16] parameter(0)\n%i = s32[3,1] parameter(1)\n"
        "ROOT %g = f32[3,16] gather(%s, %i), offset_dims={1}, slice_sizes={1,16}"
    )
    assert [(a.operand, a.bytes) for a in gathered] == [(0, 3 * ROW_BYTES), (1, 12), (-1, 3 * ROW_BYTES)]
    scattered = accesses_of(
        "%s = f32[1000,16] parameter(0)\n%i = s32[3,1] parameter(1)\n%u = f32[3,16] parameter(2)\n"
        "ROOT %g = f32[1000,16] scatter(%s, %i, %u), to_apply=%add"
    )
    assert [(a.operand, a.bytes) for a in scattered] == [(1, 12), (2, 3 * ROW_BYTES), (-1, 3 * ROW_BYTES)]


def test_memory_spaces_come_from_each_leaf() -> None:
    found = accesses_of("%t = (f32[8,16]{1,0:S(5)}, f32[2]{0}) parameter(0)\nROOT %k = f32[8,16]{1,0} custom-call(%t)")
    assert [(a.operand, a.path, a.bytes, a.memory_space) for a in found] == [
        (0, (0,), ALL, 5),
        (0, (1,), 8, 0),
        (-1, (), ALL, 0),
    ]


@pytest.mark.parametrize(
    "body",
    [
        "ROOT %a = f32[8,16] bitcast(%a)",
        "%a = f32[8,16] bitcast(%b)\nROOT %b = f32[8,16] bitcast(%a)",
        "%i = s32[] constant(0)\nROOT %a = f32[8,16] dynamic-update-slice(%a, %a, %i, %i)",
        "ROOT %a = f32[8,16] get-tuple-element(%a), index=0",
        "%s = f32[8,16] parameter(0)\nROOT %a = f32[8,16] dynamic-update-slice(%s, %nowhere, %s, %s)",
        "ROOT %t = () tuple()",
    ],
)
def test_bodies_that_make_no_sense_end_and_never_cost_more_than_everything(body: str) -> None:
    for size in of_fusion(body, "f32[8,16] s", "f32[8,16]").values():
        assert 0 <= size <= ALL


# ---- an oracle: rows that a result depends on


@dataclass(frozen=True)
class Value:
    """A value in a fusion: for each row the rows of parameter 0 from which it is computed."""

    name: str
    rows: tuple[frozenset[int], ...]

    @property
    def shape(self) -> str:
        return f"f32[{len(self.rows)},16]"


@st.composite
def fusions(draw: st.DrawFn) -> tuple[str, Value]:
    """Draw the lines of a fusion over one parameter of 8 rows, and its root."""
    values = [Value("p", tuple(frozenset({row}) for row in range(ROWS)))]
    lines = ["%p = f32[8,16] parameter(0)", "%zero = s32[] constant(0)"]
    for number in range(draw(st.integers(1, 6))):
        source = draw(st.sampled_from(values))
        size = len(source.rows)
        kind = draw(st.sampled_from(["slice", "dynamic-slice", "negate", "bitcast", "add", "update"]))
        name = f"v{number}"
        if kind in ("slice", "dynamic-slice"):
            first = draw(st.integers(0, size - 1))
            last = draw(st.integers(first + 1, size))
            made = Value(name, source.rows[first:last])
            how = f"slice(%{source.name}), slice={{[{first}:{last}], [0:16]}}"
            if kind == "dynamic-slice":
                lines.append(f"%at{number} = s32[] constant({first})")
                how = f"dynamic-slice(%{source.name}, %at{number}, %zero), dynamic_slice_sizes={{{last - first},16}}"
        elif kind == "update":
            update = draw(st.sampled_from([v for v in values if len(v.rows) <= size]))
            first = draw(st.integers(0, size - len(update.rows)))
            lines.append(f"%at{number} = s32[] constant({first})")
            made = Value(name, source.rows[:first] + update.rows + source.rows[first + len(update.rows) :])
            how = f"dynamic-update-slice(%{source.name}, %{update.name}, %at{number}, %zero)"
        elif kind == "add":
            other = draw(st.sampled_from([v for v in values if len(v.rows) == size]))
            made = Value(name, tuple(a | b for a, b in zip(source.rows, other.rows, strict=True)))
            how = f"add(%{source.name}, %{other.name})"
        else:
            made = Value(name, source.rows)
            how = f"{kind}(%{source.name})"
        lines.append(f"%{name} = {made.shape} {how}")
        values.append(made)
    root = values[-1]
    lines[-1] = "ROOT " + lines[-1]
    return "\n".join(lines), root


@given(fusion=fusions())
def test_a_fusion_never_reads_less_than_its_result_needs_nor_more_than_there_is(fusion: tuple[str, Value]) -> None:
    """Leave rows out that an update in place does not change: they need not be read."""
    body, root = fusion
    found = of_fusion(body, "f32[8,16] p", root.shape)
    read, written = found.get((0, ()), 0), found.get((-1, ()), 0)
    left_alone = len(root.rows) - written // ROW_BYTES
    needed = len(frozenset().union(*root.rows)) - left_alone
    assert needed * ROW_BYTES <= read <= ALL
    assert 0 <= written <= len(root.rows) * ROW_BYTES


@given(fusion=fusions())
def test_a_fusion_writes_less_than_its_result_only_if_the_rest_stays_in_the_parameter(
    fusion: tuple[str, Value],
) -> None:
    body, root = fusion
    written = of_fusion(body, "f32[8,16] p", root.shape).get((-1, ()), 0)
    stays = sum(rows == {row} for row, rows in enumerate(root.rows)) if len(root.rows) == ROWS else 0
    assert len(root.rows) * ROW_BYTES - written <= stays * ROW_BYTES
