"""What the reader of Nsight Systems' exports makes of rows: devices, streams, copies, steps, and what it says. The
exports are synthetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloinspect.measure.host import step_marks
from hloinspect.profiles.nsys.names import ModuleName, module_of, step_of, thunk_op
from hloinspect.profiles.open import open_trace
from hloinspect.profiles.xplane import XSpace
from tests.support.nsys_builder import Export, global_id

THREAD = global_id(700, 701)
PROCESS = global_id(700)


def copy_of(export: Export, start: int = 1000, **more: int) -> None:
    export.text("a registered string, as every export has some")
    where = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": PROCESS, "bytes": 64}
    export.memcpy(start, start + 500, **{"correlation": 0, **where, **more})


def events(space: XSpace) -> list[tuple[str, str, str]]:
    """Return line, name and details of each event of the devices."""
    found = []
    for plane in space.planes_of("/device:GPU:"):
        for line in plane.lines:
            columns = line.columns(("memcpy_details",))
            codes, texts = columns.stats["memcpy_details"].labels()
            for code, kind in zip(codes.tolist(), columns.metadata_id.tolist(), strict=True):
                found.append((line.name, plane.events[kind].name, texts[code] if code >= 0 else ""))
    return found


# ---- copies


@pytest.mark.parametrize(
    ("kinds", "name", "ends"),
    [
        ((1, 1, 2), "MemcpyH2D", "kind_src:pinned kind_dst:device"),
        ((2, 2, 1), "MemcpyD2H", "kind_src:device kind_dst:pinned"),
        ((8, 2, 1), "MemcpyD2H", "kind_src:device kind_dst:pinned"),  # called within the device, by DynamicMemcpyThunk
        ((1, 0, 2), "MemcpyH2D", "kind_src:pageable kind_dst:device"),
        ((8, 2, 2), "MemcpyD2D", "kind_src:device kind_dst:device"),
        ((10, 2, 2), "MemcpyP2P", "kind_src:device kind_dst:device"),
        ((1, 4, 2), "MemcpyH2D", "kind_src:managed kind_dst:device"),
        ((2, 5, 1), "MemcpyD2H", "kind_src:device_static kind_dst:pinned"),
        ((1, 7, 7), "MemcpyH2D", ""),
        ((0, 99, -5), "Memcpy", "kind_src:unknown kind_dst:unknown"),
    ],
)
def test_the_memories_of_a_copy_come_before_its_kind(
    tmp_path: Path, kinds: tuple[int, int, int], name: str, ends: str
) -> None:
    export = Export("2026.2")
    copy_of(export, copyKind=kinds[0], srcKind=kinds[1], dstKind=kinds[2])
    ((_, called, details),) = events(open_trace(export.write(tmp_path / "synthetic.sqlite")))
    assert called == name
    assert details == f"{ends} size:64 dest:0 async:1".strip()


def test_migrations_are_no_events_of_a_stream(tmp_path: Path) -> None:
    export = Export("2026.2")
    copy_of(export, copyKind=11, srcKind=7, dstKind=7, contextId=0, streamId=0)
    ((line, name, _),) = events(open_trace(export.write(tmp_path / "synthetic.sqlite")))
    assert (line, name) == ("Unified memory", "MemcpyUVM")


# ---- devices


def test_devices_of_two_processes_have_numbers_of_their_own(tmp_path: Path) -> None:
    export = Export("2026.2")
    for pid in (700, 900):
        for device in range(2):
            copy_of(export, copyKind=1, srcKind=1, dstKind=2, deviceId=device, globalPid=global_id(pid))
    space = open_trace(export.write(tmp_path / "synthetic.sqlite"))
    assert [plane.name for plane in space.planes_of("/device:GPU:")] == [f"/device:GPU:{n}" for n in range(4)]
    assert "GPU:2 is device 0 of process 900" in space.notes


def test_streams_of_one_number_in_two_contexts_are_two(tmp_path: Path) -> None:
    export = Export("2026.2")
    for context in (1, 2):
        copy_of(export, copyKind=1, srcKind=1, dstKind=2, contextId=context)
    (plane,) = open_trace(export.write(tmp_path / "synthetic.sqlite")).planes_of("/device:GPU:")
    assert [line.name for line in plane.lines] == ["Stream #7(MemcpyH2D)"] * 2


# ---- steps of the user


def marked(tmp_path: Path, texts: list[str], *, thread: int = THREAD, overlap: int = 0, domain: int = 0) -> XSpace:
    export = Export("2026.2")
    copy_of(export, copyKind=1, srcKind=1, dstKind=2)
    for number, text in enumerate(texts):
        start = 100 * number
        export.push_pop(thread, start, start + 90 + overlap, text, domain=domain)
    return open_trace(export.write(tmp_path / "synthetic.sqlite"))


@pytest.mark.parametrize("form", ["step {}", "train_step_{}", "Step #{}", "{}", "train {}", "iteration: {}"])
def test_ranges_that_number_steps_are_marks(tmp_path: Path, form: str) -> None:
    marks = step_marks(marked(tmp_path, [form.format(number) for number in (5, 6, 7)]))
    assert marks is not None
    assert marks.number.tolist() == [5, 6, 7]
    assert (marks.end_ps - marks.start_ps).tolist() == [90_000] * 3


@pytest.mark.parametrize(
    "texts",
    [
        ["step 1"],
        ["step 1", "step 1"],
        ["step 2", "step 1"],
        ["step 1", "step 2", "iter 1", "iter 2"],
        ["loss", "eval"],
        ["aten::view, op_id = 314290", "aten::view, op_id = 314291"],
    ],
)
def test_ranges_that_do_not_say_one_order_are_none(tmp_path: Path, texts: list[str]) -> None:
    assert step_marks(marked(tmp_path, texts)) is None


def test_ranges_that_overlap_or_are_of_another_domain_are_none(tmp_path: Path) -> None:
    assert step_marks(marked(tmp_path, ["step 1", "step 2"], overlap=20)) is None
    assert step_marks(marked(tmp_path / "other", ["step 1", "step 2"], domain=3)) is None


# ---- names


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("Thunk:#hlo_op=fusion.3#", "fusion.3"),
        ("Thunk:#name=jit(f)/reduce_sum[axes=(0,)],hlo_op=all-reduce-start#", "all-reduce-start"),
        ("Thunk:#name=,hlo_op=copy-start.1,unique_hlo_op_id=31#", "copy-start.1"),
        ("Thunk:#name=hlo_op=no,x,hlo_op=yes.1#", "yes.1"),
        ("Thunk:#hlo_op=while.1_body", "while.1_body"),
        ("Thunk:#name=,hlo_op=input_concatenate_fusion#", "input_concatenate_fusion"),
        ("Thunk:#name=a,hlo_op=no,hlo_op=copy-start.1,unique_hlo_op_id=3,newer=4#", "copy-start.1"),
        ("Thunk:#hlo_op=#", ""),
        ("Thunk:#nothing#", ""),
        ("XlaModule:#hlo_module=jit_f,program_id=3#", ""),
        ("my range hlo_op=x#", ""),
    ],
)
def test_a_thunk_names_its_instruction(name: str, op: str) -> None:
    assert thunk_op(name) == op


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("XlaModule:#hlo_module=jit_f,program_id=3#", ModuleName("jit_f", 3)),
        ("XlaModule:#prefix=jit(f)/a=1,b,hlo_module=jit_f,program_id=0#", ModuleName("jit_f", 0)),
        ("XlaModule:#hlo_module=jit_f#", ModuleName("jit_f", None)),
        ("XlaModule:#hlo_module=jit_f,program_id=3", ModuleName("jit_f", 3)),
        ("XlaModule:#hlo_module=gemm_fusion_dot.11#", ModuleName("gemm_fusion_dot.11", None)),
        ("XlaModule:#hlo_module=jit_f,program_id=3,newer=4#", ModuleName("jit_f", 3)),
        ("XlaModule:#hlo_module=jit_f,program_id=12345678901234567890#", ModuleName("jit_f", None)),
        ("XlaModule:#prefix=a#", None),
        ("XlaModule:#", None),
        ("XlaCompile:#module=jit_f,program_id=3#", None),
    ],
)
def test_a_module_names_itself_and_its_program(name: str, module: ModuleName | None) -> None:
    assert module_of(name) == module


def test_a_step_has_a_kind_and_a_number() -> None:
    assert step_of("Train Step 12") == ("train step", 12)
    assert step_of("step") is None
    assert step_of("step 5 of 9") is None


# ---- messages


def test_lost_events_are_warnings_and_other_messages_notes(tmp_path: Path) -> None:
    export = Export("2026.2")
    copy_of(export, copyKind=1, srcKind=1, dstKind=2)
    for severity, text in ((2, "10 CUPTI events were\ndropped."), (2, "SLI."), (1, "dropped nothing"), (4, "lost")):
        export.add("DIAGNOSTIC_EVENT", timestamp=0, timestampType=1, source=1, severity=severity, text=text)
    space = open_trace(export.write(tmp_path / "synthetic.sqlite"))
    assert space.warnings == ("10 CUPTI events were dropped.",)
    assert "nsys says: SLI." in space.notes


@pytest.mark.parametrize("between", [";", "\n", "\r\n"])
def test_of_the_environment_only_the_flags_of_xla_are_kept(tmp_path: Path, between: str) -> None:
    export = Export("2026.2")
    copy_of(export, copyKind=1, srcKind=1, dstKind=2)
    value = f"A_TOKEN=secret;XLA_FLAGS=--xla_dump_to=/dump --xla_a=b{between}OTHER=secret"
    export.add("TARGET_INFO_SYSTEM_ENV", devStateName="", name="DeviceEnvironment", nameEnum=610, value=value)
    space = open_trace(export.write(tmp_path / "synthetic.sqlite"))
    (plane,) = [plane for plane in space.planes if plane.name == "/host:metadata"]
    assert plane.stats["xla_flags"] == "--xla_dump_to=/dump --xla_a=b"
    assert "secret" not in repr(space.planes) + repr(space.notes) + repr(plane.metadata)
