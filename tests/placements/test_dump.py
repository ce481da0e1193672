"""The audit of a directory of --xla_dump_to: the text before all passes has the requests, and a named pass loses
one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.hlo.text import parse_text
from hloinspect.placements.before import placements_before_passes
from hloinspect.placements.flow import Place
from hloinspect.report.schema import AuditInfo, Report
from tests.support import passes_samples

LOOP = """HloModule jit_f, entry_computation_layout={{(f32[4,8]{{1,0:S(5)}}, f32[8]{{0}})->(f32[8]{{0}}, f32[8]{{0:S(5)}})}}

{frames}
%body (s: (s32[], f32[4,8], f32[4,8], f32[8])) -> (s32[], f32[4,8], f32[4,8], f32[8]) {{
  %s = (s32[], f32[4,8]{{1,0}}, f32[4,8]{{1,0}}, f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %weights = f32[4,8]{{1,0}} get-tuple-element(%s), index=1
  %stack = f32[4,8]{{1,0}} get-tuple-element(%s), index=2
  %x = f32[8]{{0}} get-tuple-element(%s), index=3
  %zero = s32[] constant(0)
  %row = f32[1,8]{{1,0}} dynamic-slice(%weights, %i, %zero), dynamic_slice_sizes={{1,8}}
  %w = f32[8]{{0}} reshape(%row)
  %fetched = f32[8]{{0}} custom-call(%w), custom_call_target="annotate_device_placement", frontend_attributes={{_xla_buffer_placement="device"}}
  %y = f32[8]{{0}} multiply(%x, %fetched), metadata={{op_name="jit(f)/mul" stack_frame_id=1}}
  %kept = f32[8]{{0}} custom-call(%y), custom_call_target="annotate_device_placement", frontend_attributes={{_xla_buffer_placement="pinned_host"}}
  %kept.1 = f32[1,8]{{1,0}} reshape(%kept)
  %stack.1 = f32[4,8]{{1,0}} dynamic-update-slice(%stack, %kept.1, %i, %zero)
  %one = s32[] constant(1)
  %i.1 = s32[] add(%i, %one)
  ROOT %t = (s32[], f32[4,8]{{1,0}}, f32[4,8]{{1,0}}, f32[8]{{0}}) tuple(%i.1, %weights, %stack.1, %y)
}}

%condition (s.1: (s32[], f32[4,8], f32[4,8], f32[8])) -> pred[] {{
  %s.1 = (s32[], f32[4,8]{{1,0}}, f32[4,8]{{1,0}}, f32[8]{{0}}) parameter(0)
  %i.2 = s32[] get-tuple-element(%s.1), index=0
  %four = s32[] constant(4)
  ROOT %less = pred[] compare(%i.2, %four), direction=LT
}}

ENTRY %main (w: f32[4,8], a: f32[8]) -> (f32[8], f32[8]) {{
  %w.1 = f32[4,8]{{1,0}} parameter(0), metadata={{op_name="weights"}}
  %a = f32[8]{{0}} parameter(1), metadata={{op_name="x"}}
  %start = s32[] constant(0)
  %nothing = f32[] constant(0)
  %empty = f32[4,8]{{1,0}} broadcast(%nothing), dimensions={{}}
  %first = (s32[], f32[4,8]{{1,0}}, f32[4,8]{{1,0}}, f32[8]{{0}}) tuple(%start, %w.1, %empty, %a)
  %loop = (s32[], f32[4,8]{{1,0}}, f32[4,8]{{1,0}}, f32[8]{{0}}) while(%first), condition=%condition, body=%body
  %filled = f32[4,8]{{1,0}} get-tuple-element(%loop), index=2
  %last = f32[1,8]{{1,0}} slice(%filled), slice={{[3:4], [0:8]}}
  %last.1 = f32[8]{{0}} reshape(%last)
  %back = f32[8]{{0}} custom-call(%last.1), custom_call_target="annotate_device_placement", frontend_attributes={{_xla_buffer_placement="device"}}
  %sent = f32[8]{{0}} custom-call(%a), custom_call_target="annotate_device_placement", frontend_attributes={{_xla_buffer_placement="pinned_host"}}
  ROOT %end = (f32[8]{{0}}, f32[8]{{0}}) tuple(%back, %sent)
}}
"""  # noqa: E501


def dump(folder: Path, texts: dict[str, str]) -> Report:
    head = "HloModule jit_f,"
    scheduled = {name: text.replace(head, f"{head} is_scheduled=true,") for name, text in texts.items()}
    return inspect(str(passes_samples.write(folder, scheduled)), target="h100").report


def audit_of(report: Report) -> AuditInfo:
    assert report.audit is not None
    assert (report.audit.requested_from, report.audit.unexplained) == ("hlo", ())
    return report.audit


def test_a_dump_shows_what_was_requested_and_its_transfers(tmp_path: Path) -> None:
    audit = audit_of(dump(tmp_path / "dump", passes_samples.GOOD))
    assert [(e.direction, e.by, e.outcome, e.transfers) for e in audit.entries] == [
        ("d2h", "annotation", "kept", (1,)),
        ("h2d", "annotation", "kept", (2,)),
    ]
    assert [unknown.affects for unknown in audit.unknown] == ["audit"]


def test_a_dump_with_the_texts_of_passes_names_the_pass_that_dropped_it(tmp_path: Path) -> None:
    report = dump(tmp_path / "dump", passes_samples.DROPPED)
    for entry in audit_of(report).entries:
        assert (entry.outcome, entry.cause, entry.pass_name) == ("dropped", "folded", "algsimp")
        assert entry.source is not None
        assert (entry.source.file, entry.source.line) == ("train.py", 41)
    (found,) = [f for f in report.findings if f.code == "HLO309"]
    assert "by the pass algsimp" in found.message
    assert found.evidence["pass"] == "algsimp"


def test_without_the_texts_of_passes_it_is_dropped_by_nobody_known(tmp_path: Path) -> None:
    ends = dict([*passes_samples.DROPPED.items()][:1]) | dict([*passes_samples.DROPPED.items()][-1:])
    report = dump(tmp_path / "dump", ends)
    for path in (tmp_path / "dump").glob("*.000*"):
        path.unlink()
    report = inspect(str(tmp_path / "dump"), target="h100").report
    assert {(e.outcome, e.pass_name) for e in audit_of(report).entries} == {("dropped", None)}


def test_a_loop_requests_once_for_each_iteration_and_its_stack_is_followed() -> None:
    placements = placements_before_passes(parse_text(LOOP.format(frames=passes_samples.FRAMES)))
    fetched, kept, back, sent = placements.requests
    assert (fetched.direction, fetched.runs, fetched.counted, fetched.argument) == ("h2d", 4, True, 0)
    assert (kept.direction, kept.runs, kept.of) == ("d2h", 4, None)
    assert kept.made == Place("train.py", 41, 8, "layer")
    assert (back.direction, back.runs, back.of, back.separated, back.computed) == ("h2d", 1, 1, True, False)
    assert (sent.direction, sent.argument, sent.result) == ("d2h", 1, 1)
    assert [(entry_value.kind, entry_value.number, entry_value.name) for entry_value in placements.entry_values] == [
        ("argument", 0, "weights"),
        ("result", 1, "result[1]"),
    ]


@pytest.mark.parametrize("cut", range(0, 3600, 300))
def test_a_text_that_is_cut_off_is_one_line_or_a_smaller_program(cut: int) -> None:
    from hloinspect.errors import HloInspectError

    text = LOOP.format(frames=passes_samples.FRAMES)
    said = ""
    try:
        placements_before_passes(parse_text(text[: len(text) - cut]))
    except HloInspectError as error:
        said = str(error)
    assert "\n" not in said
