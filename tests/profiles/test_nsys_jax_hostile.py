"""Hostile and damaged archives of nsys-jax end in one clear line, in bounded time and memory."""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloinspect.errors import HloInspectError, InputError
from hloinspect.measure.file import measure_space
from hloinspect.profiles.nsys import archive_members, archive_modules, archive_tables
from hloinspect.profiles.nsys.archive import open_nsys_jax
from hloinspect.profiles.nsys.archive_members import find_archives, is_nsys_jax, open_members, unpacked
from hloinspect.profiles.xplane import Plane
from tests.support.nsys_jax_archives import TRACE, Archive, Range, columns, parquet, zipped

RANGES = [
    Range("XlaModule:#hlo_module=jit_step,program_id=7#", 100, 900, 1),
    Range("Thunk:#hlo_op=fusion.1#", 100, 500, 1, 0),
    Range("Thunk:#hlo_op=all-reduce-start.2#", 400, 900, 1, 0),
]
ARCHIVE = Archive(
    RANGES, {"module_0007.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz": b"HloModule x"}, {1: "python"}
)
MODULE = "dump/module_0007.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz"


def line_of(path: Path) -> str:
    """Return what is wrong with an archive, or "" if it can be read and measured."""
    try:
        measure_space(open_nsys_jax(path))
    except HloInspectError as error:
        return str(error) or "nothing"
    return ""


def refused(path: Path, match: str | None = None) -> None:
    with pytest.raises(InputError, match=match) as raised:
        open_nsys_jax(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def changed(tmp_path: Path, **columns_: object) -> Path:
    """Return an archive whose table has other columns: None leaves one out."""
    table: dict[str, object] = dict(columns(RANGES))
    for name, values in columns_.items():
        full = name.replace("_", " ")
        if values is None:
            del table[full]
        else:
            table[full] = values
    return zipped(ARCHIVE.members() | {TRACE: parquet(table)}, tmp_path / "x.zip")  # type: ignore[arg-type]


# ---- the table


@pytest.mark.parametrize(
    "column", ["Name", "Projected Start", "Projected Duration", "PID", "TID", "RangeId", "ParentId"]
)
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    refused(changed(tmp_path, **{column: None}), "expected the columns of nvtx_gpu_proj_trace")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("Projected Start", ["a", "b", "c"]),
        ("Projected Start", [[1], [2], [3]]),
        ("Name", [1, 2, 3]),
        ("Name", [b"\xff\xfe", b"x", b"y"]),
        ("Name", [["a"], ["b"], ["c"]]),
        ("PID", [None, None, None]),
        ("RangeId", [float("nan"), float("inf"), 1e300]),
        ("NumGPUOps", ["x", "y", "z"]),
        ("ParentId", [True, False, True]),
    ],
)
def test_columns_of_other_types_do_no_harm(tmp_path: Path, column: str, values: list[object]) -> None:
    path = changed(tmp_path, **{column: values})
    line = line_of(path)
    assert not line or line.startswith(str(path))
    assert "\n" not in line


def test_ranges_that_contain_each_other_are_refused(tmp_path: Path) -> None:
    refused(changed(tmp_path, ParentId=[5006.0, 5006.0, 5003.0]), "contain each other")
    refused(changed(tmp_path, ParentId=[5000.0, 5003.0, 5006.0]), "contain each other")


def test_ranges_nested_without_end_are_refused(tmp_path: Path) -> None:
    deep = [Range(f"Thunk:#hlo_op=f.{n}#", 1, 2, 1, n - 1) for n in range(5000)]
    refused(zipped(Archive(deep).members(), tmp_path / "x.zip"), "nested more than 256 levels deep")


@pytest.mark.parametrize("start", [-(1 << 63), -(1 << 61), 1 << 61, (1 << 63) - 1])
def test_an_impossible_time_makes_no_other_event_unusable(tmp_path: Path, start: int) -> None:
    many = [RANGES[0], *(Range(f"Thunk:#hlo_op=f.{n}#", 100 * n, 100 * n + 50, 1, 0) for n in range(1, 6))]
    table = columns(many)
    table["Projected Start"][3] = start
    space = open_nsys_jax(zipped(ARCHIVE.members() | {TRACE: parquet(table)}, tmp_path / "x.zip"))
    (plane,) = space.planes_of("/device:GPU:")
    names = [plane.events[kind].name for kind, ok in usable(plane) if ok]
    assert names == ["f.1", "f.2", "f.4", "f.5"]
    measure_space(space)


def usable(plane: Plane) -> list[tuple[int, bool]]:
    """Return the kind of each event, and whether it has a time."""
    own = plane.lines[0].columns()
    return list(zip(own.metadata_id.tolist(), own.usable.tolist(), strict=True))


def test_a_table_that_claims_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_tables, "MAX_ROWS", 2)
    refused(changed(tmp_path), "at most 2 rows and 1,000 columns, found 3")


def test_a_table_that_unpacks_to_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_tables, "MAX_TABLE_BYTES", 64)
    refused(changed(tmp_path), "at most 64 bytes")


def test_a_long_text_that_repeats_is_held_once(tmp_path: Path) -> None:
    """A Parquet file may have a text once for all rows: a table of texts would have 10 GB here."""
    rows = 1_000_000
    texts = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["TSL:" + "x" * 10_000])
    table = pyarrow.table(
        {name: texts if name == "Name" else values * rows for name, values in columns(RANGES[:1]).items()}
    )
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out, store_schema=False)
    path = zipped(ARCHIVE.members() | {TRACE: out.getvalue()}, tmp_path / "x.zip")
    assert not open_nsys_jax(path).planes_of("/device:")
    assert pyarrow.default_memory_pool().max_memory() < 1 << 30


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=20), st.booleans())
def test_flipped_bytes_end_in_a_line_or_in_a_trace(tmp_path: Path, flips: list[tuple[int, int]], inside: bool) -> None:
    members = ARCHIVE.members()
    data = bytearray(members[TRACE]) if inside else bytearray(zipped(members, tmp_path / "whole.zip").read_bytes())
    for place, value in flips:
        data[place % len(data)] = value
    path = tmp_path / "x.zip"
    if inside:
        zipped(members | {TRACE: bytes(data)}, path)
    else:
        path.write_bytes(data)
    is_nsys_jax(path)
    assert "\n" not in line_of(path)


# ---- the zip


@pytest.mark.parametrize("size", [0, 4, 30, 1000, -30, -1])
def test_a_zip_that_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    whole = zipped(ARCHIVE.members(), tmp_path / "whole.zip").read_bytes()
    path = tmp_path / "x.zip"
    path.write_bytes(whole[:size] if size else b"")
    assert not is_nsys_jax(path)
    refused(path)


def test_a_member_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = zipped(ARCHIVE.members() | {TRACE: bytes(1 << 21)}, tmp_path / "x.zip")
    with pytest.raises(InputError, match="at most 1,048,576 bytes"):
        open_members(path).read(TRACE, 1 << 20)
    _with_stated_size(path, 100)
    with pytest.raises(InputError, match="damaged"):
        open_members(path).read(TRACE, 1 << 20)


def _with_stated_size(path: Path, size: int) -> None:
    """Make a zip claim another unpacked size of the trace in its list of members."""
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02")
    while not data[place + 46 :].startswith(TRACE.encode()):
        place = data.index(b"PK\x01\x02", place + 4)
    data[place + 24 : place + 28] = struct.pack("<I", size)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_packed_in_other_ways_are_refused(tmp_path: Path, kind: int) -> None:
    """Python unpacks these without a limit."""
    refused(zipped(ARCHIVE.members(), tmp_path / "x.zip", kind), "packed in a way that nsys-jax does not use")


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = zipped(ARCHIVE.members(), tmp_path / "x.zip", zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = -1
        while (place := data.find(magic, place + 1)) >= 0:
            data[place + flags] |= 1
    path.write_bytes(data)
    refused(path, "encrypted")


def test_a_list_of_members_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_members, "MAX_LISTING_BYTES", 200)
    refused(zipped(ARCHIVE.members(), tmp_path / "x.zip"), "list of members")


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = zipped(ARCHIVE.members(), tmp_path / "x.zip")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(TRACE, b"other")
    refused(path, "two members of one name")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "dump/../../../x", "C:\\x", "a\x00b", "\x1b[31m"])
def test_names_of_members_are_no_paths(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    before = sorted(tmp_path.rglob("*"))
    path = zipped(ARCHIVE.members() | {name: b"x"}, folder / "x.zip")
    open_nsys_jax(path)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path])


# ---- modules


def test_an_xz_file_that_unpacks_to_more_than_the_limit_is_refused() -> None:
    with pytest.raises(InputError, match="at most 1,000 bytes"):
        unpacked(lzma.compress(bytes(1 << 24)), "x", 1000)


def test_an_xz_file_that_needs_much_memory_is_refused() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    try:
        data = lzma.compress(b"x", filters=filters)
    except MemoryError:
        pytest.skip("no memory to make it")
    with pytest.raises(InputError, match="damaged"):
        unpacked(data, "x")


@pytest.mark.parametrize(
    "data", [b"", b"\xfd7zXZ\x00", b"\xfd7zXZ\x00" + bytes(100), b"\x1f\x8b", b"HloModule x\n", b"\0" * 99]
)
def test_a_module_that_is_none_is_a_note_and_a_gap(tmp_path: Path, data: bytes) -> None:
    space = open_nsys_jax(zipped(ARCHIVE.members() | {MODULE: data}, tmp_path / "x.zip"))
    assert any(MODULE in note for note in space.notes)
    assert any("no module of jit_step" in gap.reason for gap in space.gaps)


def test_all_modules_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_modules, "MAX_TOTAL_BYTES", 4)
    space = open_nsys_jax(zipped(ARCHIVE.members(), tmp_path / "x.zip"))
    assert any("modules have more than 4 bytes" in note for note in space.notes)


@pytest.mark.parametrize("name", ["thread-metadata.parquet", "device-metadata.parquet", "system-metadata.parquet"])
@pytest.mark.parametrize(
    "data", [b"", b"PAR1", parquet({"x": [1]}), parquet({"Name": [1], "PID": ["x"], "TID": [None]})]
)
def test_other_tables_that_are_damaged_end_in_a_line(tmp_path: Path, name: str, data: bytes) -> None:
    line = line_of(zipped(ARCHIVE.members() | {name: data}, tmp_path / "x.zip"))
    assert not line or name in line
    assert "\n" not in line


# ---- directories


def test_paths_that_are_no_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    refused(tmp_path / "text", "a file of another kind")
    refused(tmp_path / "absent", "no such file")
    refused(tmp_path, "expected nvtx_gpu_proj_trace/trace.parquet")
    assert find_archives(tmp_path) == ()
    assert not is_nsys_jax("x\0y")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / TRACE).mkdir(parents=True)
    refused(tmp_path)
    (tmp_path / "trace.parquet").mkdir()
    assert not is_nsys_jax(tmp_path / "trace.parquet")
