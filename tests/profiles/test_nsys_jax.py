"""Archives of nsys-jax: which ranges are events, on which device, of which program. Archives here are synthetic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import InputError, UsageError
from hloinspect.inputs.classify import is_trace
from hloinspect.profiles.find import find_profiles
from hloinspect.profiles.nsys.archive import open_nsys_jax
from hloinspect.profiles.nsys.archive_members import find_archives, is_nsys_jax
from hloinspect.profiles.nsys.archive_ranges import work_of
from hloinspect.profiles.nsys.archive_tables import Ranges
from hloinspect.profiles.open import open_trace
from hloinspect.profiles.xplane import Plane, XSpace, embedded_modules
from tests.support.cuda_runtime import PROGRAM, compiled
from tests.support.cuda_traces import COLLECTIVES, US, Device, Event, Trace, kernel
from tests.support.cuda_traces import Program as Dumped
from tests.support.nsys_jax_archives import (
    FIRST_THREAD,
    FORMS,
    TRACE,
    Archive,
    Form,
    Range,
    archive_of,
    columns,
    combined,
    parquet,
    write_directory,
    zipped,
)

STEP = "XlaModule:#hlo_module=jit_step,program_id=7#"


def small(devices: int = 2, runs: int = 3, shift_ps: int = 0) -> Trace:
    """Return a trace of a program with a kernel and a collective that overlap."""
    module = compiled("optimizer").module

    def events(device: int) -> tuple[Event, ...]:
        found = []
        for run in range(runs):
            begin = (100 + 50 * run + run * run) * US + device * 7000 + shift_ps
            found.append(kernel(begin, begin + 10 * US, "fusion.1", program=PROGRAM))
            end = (120 + 50 * run + run * run) * US + shift_ps
            found.append(
                Event(COLLECTIVES, begin + 5 * US, end, "nccl", "all-reduce-start.1", PROGRAM, what="collective")
            )
            found.append(kernel(begin + 10 * US, begin + 12 * US, "fusion.2", program=PROGRAM))
        return tuple(
            Event(
                e.stream, e.start_ps, e.end_ps, e.name, e.op, e.program, launched_ps=e.start_ps, what=e.what, run=n // 3
            )
            for n, e in enumerate(found)
        )

    program = Dumped(module.name, PROGRAM, compiled("optimizer").proto)
    return Trace(tuple(Device(number, events(number)) for number in range(devices)), (program,))


def opened(archive: Archive, folder: Path, form: Form = "2024.4") -> XSpace:
    return open_nsys_jax(zipped(archive.members(form), folder / "synthetic.zip"))


def names(plane: Plane) -> list[tuple[str, str, int, int]]:
    """Return the events of a plane: line, instruction, start and end in ns."""
    found = []
    for line in plane.lines:
        own = line.columns(("hlo_op",))
        codes, texts = own.stats["hlo_op"].labels()
        kinds = [plane.events[number].name for number in own.metadata_id.tolist()]
        for code, kind, start, end in zip(
            codes.tolist(), kinds, own.start_ps.tolist(), own.end_ps.tolist(), strict=True
        ):
            assert code < 0 or texts[code] == kind
            found.append((line.name, kind, start // 1000, end // 1000))
    return found


# ---- what an event is


def test_the_deepest_ranges_of_instructions_are_the_events(tmp_path: Path) -> None:
    ranges = [
        Range(STEP, 100, 900, FIRST_THREAD, gpu_ops=7),
        Range("Thunk:#hlo_op=while.1#", 100, 700, FIRST_THREAD, 0, gpu_ops=5),
        Range("Thunk:#hlo_op=while.1_body#", 100, 700, FIRST_THREAD, 1, gpu_ops=4),
        Range("Thunk:#name=a/b,hlo_op=fusion.3,unique_hlo_op_id=12#", 100, 300, FIRST_THREAD, 2),
        Range("Thunk:#name=dot,hlo_op=custom-call.4#", 400, 700, FIRST_THREAD, 2, gpu_ops=3),
        Range("Thunk:#name=dot,hlo_op=custom-call.4#", 500, 700, FIRST_THREAD, 4, gpu_ops=2),
        Range("Thunk:#hlo_op=all-reduce-start#", 800, 900, FIRST_THREAD, 0),
        Range("ncclGroupEnd", 800, 900, FIRST_THREAD, 6, domain="NCCL"),
    ]
    space = opened(Archive(ranges), tmp_path)
    (plane,) = space.planes_of("/device:GPU:")
    assert names(plane) == [
        ("Stream #1(Synchronous)", "fusion.3", 100, 300),
        ("Stream #1(Synchronous)", "custom-call.4", 400, 700),
        ("Stream #2(Asynchronous)", "all-reduce-start", 800, 900),
    ]
    columns_ = plane.lines[0].columns(("program_id", "hlo_module"))
    assert columns_.stats["program_id"].integers().tolist() == [7, 7]
    assert columns_.stats["hlo_module"].labels()[1] == ("jit_step",)
    assert any(
        note.startswith("2 GPU operations of programs are in no range of an instruction") for note in space.notes
    )
    assert space.kind == "nsys-jax"


def ranges_of(kinds: Sequence[tuple[int, int]], parents: Sequence[int]) -> Ranges:
    """Return ranges by kind (0 module, 1 thunk, 2 other) and name, and the place of the range around each."""
    texts = [f"TSL:XlaModule:#hlo_module=m{n},program_id={n}#" for n in range(3)]
    texts += [f"TSL:Thunk:#hlo_op=f.{n}#" for n in range(3)] + [f"NCCL:x{n}" for n in range(3)]
    count = len(kinds)
    numbers = np.arange(count, dtype=np.int64)
    return Ranges(
        np.array([3 * kind + name for kind, name in kinds], np.int64),
        tuple(texts),
        numbers,
        numbers + 10,
        numbers,
        np.ones(count, np.int64),
        np.ones(count, np.int64),
        2 * numbers + 5,
        np.array([2 * parent + 5 if parent >= 0 else -1 for parent in parents], np.int64),
        np.ones(count, np.int64),
    )


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[int]]:
    kinds = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=14))
    return kinds, [draw(st.integers(-1, place - 1)) for place in range(len(kinds))]


@given(trees())
def test_events_are_those_that_a_walk_over_the_tree_finds(tree: tuple[list[tuple[int, int]], list[int]]) -> None:
    kinds, parents = tree

    def above(place: int, kind: int) -> int:
        place = parents[place]
        while place >= 0 and kinds[place][0] != kind:
            place = parents[place]
        return place

    def is_part(place: int) -> bool:
        around = above(place, 1)
        return around >= 0 and kinds[around] == kinds[place]

    def encloses(place: int) -> bool:
        """Whether a thunk of another name is right inside it, or inside a part of it."""
        inside = [other for other in range(len(kinds)) if kinds[other][0] == 1 and above(other, 1) == place]
        return any(encloses(other) if is_part(other) else True for other in inside)

    expected = {
        place: (kinds[place][1], kinds[run][1] if (run := above(place, 0)) >= 0 else None, run)
        for place in range(len(kinds))
        if kinds[place][0] == 1 and not is_part(place) and not encloses(place)
    }
    work = work_of(ranges_of(kinds, parents), "x")
    found = {
        int(row): (
            int(work.ops[op].removeprefix("f.")),
            work.programs[program].number if program >= 0 else None,
            int(run),
        )
        for row, op, program, run in zip(work.row, work.op, work.program, work.run, strict=True)
    }
    assert found == expected


# ---- devices


@pytest.mark.parametrize("form", FORMS)
def test_a_launching_thread_is_a_device(tmp_path: Path, form: Form) -> None:
    space = opened(archive_of(small(devices=3), first_device=4), tmp_path, form)
    planes = space.planes_of("/device:GPU:")
    assert [plane.name for plane in planes] == ["/device:GPU:4", "/device:GPU:5", "/device:GPU:6"]
    assert planes[0].stats["gpu_device_name"] == "NVIDIA H100 80GB HBM3"
    assert planes[0].stats["memory_bandwidth"] == 3_352_320_000_000
    assert space.hostnames == ("synthetic",)
    for plane, device in zip(planes, small(devices=3).devices, strict=True):
        expected = sorted((e.op, e.start_ps // 1000, e.end_ps // 1000) for e in device.events)
        assert sorted(event[1:] for event in names(plane)) == expected
    assert not any("which thread" in note for note in space.notes)


def test_threads_without_names_are_counted_and_said_so(tmp_path: Path) -> None:
    space = opened(archive_of(small(), named=False), tmp_path)
    assert [plane.name for plane in space.planes_of("/device:GPU:")] == ["/device:GPU:0", "/device:GPU:1"]
    assert any("which thread drives which GPU is not in the archive" in note for note in space.notes)


@pytest.mark.parametrize("named", [True, False])
def test_what_another_thread_launched_is_on_no_device(tmp_path: Path, named: bool) -> None:
    archive = archive_of(small(), named=named)
    main = [
        Range("XlaModule:#hlo_module=jit_add,program_id=9#", 10, 30, 77),
        Range("Thunk:#hlo_op=add.1#", 10, 30, 77, len(archive.ranges)),
    ]
    space = opened(Archive([*archive.ranges, *main], archive.modules, archive.threads, archive.devices), tmp_path)
    assert len(space.planes_of("/device:GPU:")) == 2
    assert any(note.startswith("1 operations of 2e-05 ms ran on one of the devices") for note in space.notes)


def test_devices_that_run_different_programs_are_all_there(tmp_path: Path) -> None:
    """Run stages of a pipeline in one process, whose threads have no names."""
    ranges: list[Range] = []
    for stage in range(3):
        for run in range(3):
            begin, end, thread = 1000 * run + 100 * stage, 1000 * run + 100 * stage + 90, FIRST_THREAD + stage
            ranges.append(Range(f"XlaModule:#hlo_module=jit_stage{stage},program_id={stage}#", begin, end, thread))
            ranges.append(Range("Thunk:#hlo_op=fusion.1#", begin, end, thread, len(ranges) - 1))
    space = opened(Archive(ranges), tmp_path)
    assert [len(names(plane)) for plane in space.planes_of("/device:GPU:")] == [3, 3, 3]
    assert ids(space) == {0, 1, 2}


def ids(space: XSpace) -> set[int]:
    """Return the program ids of all events."""
    lines = [line for plane in space.planes_of("/device:GPU:") for line in plane.lines]
    return {
        number for line in lines for number in line.columns(("program_id",)).stats["program_id"].integers().tolist()
    }


def test_a_process_of_one_device_launches_from_its_main_thread(tmp_path: Path) -> None:
    archive = archive_of(small(devices=1), first_device=3)
    space = opened(Archive(archive.ranges, archive.modules, {1: "python"}, archive.devices), tmp_path)
    assert [plane.name for plane in space.planes_of("/device:GPU:")] == ["/device:GPU:3"]


def test_work_outside_of_ranges_has_no_time_unless_it_is_one_operation(tmp_path: Path) -> None:
    archive = archive_of(small(devices=1))
    outside = [
        Range(None, 0, 10**9, FIRST_THREAD, gpu_ops=2211),
        Range(None, 50, 90, FIRST_THREAD, gpu_ops=1),
    ]
    space = opened(Archive([*archive.ranges, *outside], archive.modules), tmp_path)
    (plane,) = space.planes_of("/device:GPU:")
    nameless = [event for event in names(plane) if event[1] == "GPU operation outside of any range"]
    assert nameless == [("Stream #1(Synchronous)", "GPU operation outside of any range", 50, 90)]
    assert any(note.startswith("2,211 GPU operations outside of any range") for note in space.notes)


def test_devices_of_a_process_that_cannot_be_separated_are_a_gap(tmp_path: Path) -> None:
    """nsys 2024.5 and 2024.6 leave out thread ids."""
    archive = archive_of(small(), named=False)
    table = columns(archive.ranges, "2024.5")
    del table["TID"]
    members = archive.members() | {TRACE: parquet(table)}
    space = open_nsys_jax(zipped(members, tmp_path / "synthetic.zip"))
    assert len(space.planes_of("/device:GPU:")) == 1
    assert [gap.affects for gap in space.gaps if "which thread launched" in gap.reason] == ["time"]


def test_a_pool_of_threads_is_no_set_of_devices(tmp_path: Path) -> None:
    ranges: list[Range] = []
    for run in range(12):
        thread = FIRST_THREAD + (run % 3 if run < 4 else 0)
        ranges.append(Range(STEP, 100 * run, 100 * run + 50, thread))
        ranges.append(Range("Thunk:#hlo_op=fusion.1#", 100 * run, 100 * run + 50, thread, len(ranges) - 1))
    space = opened(Archive(ranges), tmp_path)
    assert any("a thread is no device" in gap.reason and gap.affects == "time" for gap in space.gaps)


def test_times_since_1970_are_counted_from_a_time_of_the_trace(tmp_path: Path) -> None:
    """nsys export --ts-normalize writes such, whose picoseconds do not fit into 64 bits."""
    space = opened(archive_of(small(), shift_ns=1_700_000_000 * 10**9), tmp_path)
    plain = opened(archive_of(small()), tmp_path)
    for plane, other in zip(space.planes_of("/device:"), plain.planes_of("/device:"), strict=True):
        moved = [(line, op, start + space.base_ns, end + space.base_ns) for line, op, start, end in names(plane)]
        shift = 1_700_000_000 * 10**9
        assert moved == [(line, op, start + shift, end + shift) for line, op, start, end in names(other)]


# ---- modules and several processes


def test_only_modules_of_programs_that_ran_are_read(tmp_path: Path) -> None:
    archive = archive_of(small())
    members = archive.members()
    (name,) = [member for member in members if member.startswith("dump/")]
    members[name.replace("module_0007", "module_0008")] = b"not read"
    members[name.replace(compiled("optimizer").module.name, "jit_other")] = b"not read"
    members["dump/module_0007.x.before_optimizations.hlo.pb.xz"] = b"not read"
    space = open_nsys_jax(zipped(members, tmp_path / "synthetic.zip"))
    assert embedded_modules(space) == {PROGRAM: compiled("optimizer").proto}
    assert not any("cannot" in note or "damaged" in note for note in space.notes)


def test_a_module_that_is_damaged_is_named(tmp_path: Path) -> None:
    members = archive_of(small()).members()
    (name,) = [member for member in members if member.startswith("dump/")]
    members[name] = members[name][:-20]
    space = open_nsys_jax(zipped(members, tmp_path / "synthetic.zip"))
    assert embedded_modules(space) == {}
    assert any(name in note and "cut off" in note for note in space.notes)


def parts(count: int = 3, shifts: Sequence[int] = (0, -28_540_000, 305_480_000)) -> dict[str, dict[str, bytes]]:
    """Return the members of archives of several processes with a device each, whose clocks differ."""
    found = {}
    for number in range(count):
        one = Trace((small(devices=count, runs=9).devices[number],), small().modules)
        archive = archive_of(one, first_device=number - one.devices[0].ordinal, shift_ns=shifts[number])
        found[f"proc{number}"] = archive.members()
    return found


def test_processes_in_one_archive_are_devices_with_one_clock(tmp_path: Path) -> None:
    path = zipped(combined(parts()), tmp_path / "all.zip")
    space = open_nsys_jax(path)
    assert [plane.name for plane in space.planes_of("/device:GPU:")] == [f"/device:GPU:{n}" for n in range(3)]
    assert embedded_modules(space) == {PROGRAM: compiled("optimizer").proto}
    (note,) = [note for note in space.notes if "clocks were aligned" in note]
    assert "proc1 -28.54 ms" in note
    assert "proc2 +305.48 ms" in note
    for plane, device in zip(space.planes_of("/device:GPU:"), small(devices=3, runs=9).devices, strict=True):
        expected = sorted((e.op, e.start_ps // 1000, e.end_ps // 1000) for e in device.events)
        assert sorted(event[1:] for event in names(plane)) == expected


def test_clocks_without_common_collectives_are_not_aligned(tmp_path: Path) -> None:
    few = {
        f"proc{number}": archive_of(
            Trace((small(runs=2).devices[number],), small().modules), first_device=0, shift_ns=number * 10**6
        ).members()
        for number in range(2)
    }
    space = open_nsys_jax(zipped(combined(few), tmp_path / "all.zip"))
    assert any("the clocks of proc1 could not be aligned" in note for note in space.notes)


# ---- finding and recognizing


def test_archives_are_recognized_by_content(tmp_path: Path) -> None:
    members = archive_of(small()).members()
    packed = zipped(members, tmp_path / "no_name_at_all")
    folder = write_directory(members, tmp_path / "folder")
    loose = write_directory(members, tmp_path / "loose", lambda name: name.rpartition("/")[2])
    other = zipped({"a.txt": b"x"}, tmp_path / "x.zip")
    (tmp_path / "y.parquet").write_bytes(parquet({"a": [1]}))
    (tmp_path / "z.parquet").write_bytes(b"PAR1")
    for path in (packed, folder, loose, loose / "trace.parquet", folder / TRACE):
        assert is_nsys_jax(path)
        assert is_trace(str(path))
        assert open_trace(path).kind == "nsys-jax"
        assert set(embedded_modules(open_trace(path))) == {PROGRAM}
    for path in (other, tmp_path / "y.parquet", tmp_path / "z.parquet", tmp_path / "absent", folder / "dump"):
        assert not is_nsys_jax(path)


def test_zips_side_by_side_are_one_run(tmp_path: Path) -> None:
    for stem, members in parts().items():
        zipped(members, tmp_path / f"{stem}.zip")
    zipped({"a.txt": b"x"}, tmp_path / "other.zip")
    write_directory(parts()["proc1"], tmp_path / "proc1")
    expected = tuple(tmp_path / f"proc{number}.zip" for number in range(3))
    assert find_archives(tmp_path) == find_profiles(tmp_path) == expected
    assert is_trace(str(tmp_path))
    zipped(combined(parts()), tmp_path / "all.zip")
    assert find_archives(tmp_path) == (tmp_path / "all.zip",)
    assert find_archives(tmp_path / "proc1") == (tmp_path / "proc1",)


def test_a_directory_without_archives_is_no_trace(tmp_path: Path) -> None:
    zipped({"a.txt": b"x"}, tmp_path / "other.zip")
    assert find_archives(tmp_path) == ()
    assert not is_trace(str(tmp_path))
    with pytest.raises(InputError, match="expected a profile"):
        find_profiles(tmp_path)


def test_without_pyarrow_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(archive_of(small()).members(), tmp_path / "synthetic.zip")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r'pip install "hloinspect\[nsys\]"'):
        open_nsys_jax(path)
