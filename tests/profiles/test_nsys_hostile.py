"""Exports of Nsight Systems that are damaged or made to harm: one line or a right answer, and the file stays as it is.

Nothing that a file says in SQL is run: views, triggers, generated columns and virtual tables are those of whoever made
it. No file is opened for writing, and none is made beside it.
"""

from __future__ import annotations

import gzip
import random
import sqlite3
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect import trace as trace_file
from tests.support.nsys_builder import FORMS, global_id
from tests.support.nsys_damage import (
    KERNEL,
    MEMCPY,
    RUNTIME,
    answer_of,
    answers_elsewhere,
    changed,
    crowd,
    known_columns,
    small_export,
    sql_of_the_file,
    tables_of,
    write_untyped,
)
from tests.support.thorough import examples, is_thorough

EVENTS = 9
"""Events of the small export: four in each of two runs, and a graph."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The smallest export of the newest version, in small pages."""
    path = small_export().write(tmp_path_factory.mktemp("small") / "synthetic.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute("VACUUM")
    connection.close()
    return path.read_bytes()


# ---- what is no database


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text.sqlite", b"this is no database\n" * 100),
        ("empty.sqlite", b""),
        ("magic.sqlite", b"SQLite format 3\0"),
        ("zeros.sqlite", b"SQLite format 3\0" + bytes(4096)),
        ("noise.sqlite", b"SQLite format 3\0" + random.Random(1).randbytes(8192)),
        ("old.sqlite", b"** This file contains an SQLite 2.1 database **" + bytes(2000)),
        ("report.sqlite", b"NVIDIA Tegra Profiler Report 1.\n" + bytes(2000)),
        ("packed.sqlite", gzip.compress(b"SQLite format 3\0" + bytes(4096), mtime=0)),
        ("name.db-journal", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(1000)),
    ],
)
def test_a_file_that_is_no_export_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert isinstance(answer_of(path), str)


def test_a_zip_and_a_directory_called_sqlite_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "packed.sqlite"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("synthetic.sqlite", b"SQLite format 3\0")
    assert isinstance(answer_of(path), str)
    folder = tmp_path / "folder.sqlite"
    folder.mkdir()
    assert isinstance(answer_of(folder), str)


def test_a_database_of_another_program_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "synthetic.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cookies (host TEXT, value TEXT)")
    connection.close()
    assert "Nsight Systems" in str(answer_of(path))


def test_the_content_says_what_a_file_is_and_not_its_name(tmp_path: Path, small: bytes) -> None:
    for name in ("synthetic.xplane.pb", "synthetic", "synthetic.json", "synthetic.nsys-rep"):
        (tmp_path / name).write_bytes(small)
        assert answer_of(tmp_path / name) == EVENTS


# ---- damage


def test_a_file_cut_off_anywhere_is_refused_or_answered(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "synthetic.sqlite"
    lengths = range(len(small)) if is_thorough() else [*range(0, 600, 25), *range(600, len(small), 311)]
    for length in lengths:
        path.write_bytes(small[:length])
        answer_of(path)


@settings(max_examples=examples(150, 20_000))
@given(st.data())
def test_any_damage_gives_an_answer_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, small: bytes, data: st.DataObject
) -> None:
    content = bytearray(small)
    places = st.one_of(st.integers(0, 99), st.integers(0, len(content) - 1))
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(places)
        kind = data.draw(st.sampled_from(["byte", "zeros", "delete", "swap"]))
        if kind == "byte":
            content[place] = data.draw(st.integers(0, 255))
        elif kind == "zeros":
            content[place : place + 40] = bytes(len(content[place : place + 40]))
        elif kind == "delete":
            del content[place : place + data.draw(st.integers(1, 600))]
        else:
            one, other = (512 * data.draw(st.integers(0, len(content) // 512 - 1)) for _ in range(2))
            content[one : one + 512], content[other : other + 512] = (
                content[other : other + 512],
                content[one : one + 512],
            )
        content = content or bytearray(b"\0")
        places = st.integers(0, len(content) - 1)
    path = tmp_path_factory.mktemp("damage") / "synthetic.sqlite"
    path.write_bytes(bytes(content))
    answer_of(path)


ODD_CELLS = st.one_of(
    st.sampled_from([None, "", "text", "12", b"", b"\xff\x00", 0, -1, 2**63 - 1, -(2**63), 2**62, 1e308, -1e308]),
    st.sampled_from(
        [float("inf"), 0.5, 1 << 53, (1 << 53) + 1, 2**31, 2**32, 9_223_372_036_854_775, "9" * 400, "\0a\nb"]
    ),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=20),
    st.binary(max_size=20),
)


@settings(max_examples=examples(150, 30_000))
@given(st.data())
def test_any_value_in_any_cell_gives_an_answer_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    export = small_export(data.draw(st.sampled_from(FORMS)))
    cells: dict[tuple[str, int, str], object] = {}
    for _ in range(data.draw(st.integers(1, 3))):
        table = data.draw(st.sampled_from(tables_of(export)))
        row = data.draw(st.integers(0, len(export.rows[table]) - 1))
        cells[table, row, data.draw(st.sampled_from(known_columns(table)))] = data.draw(ODD_CELLS)
    path = tmp_path_factory.mktemp("cells") / "synthetic.sqlite"
    answer_of(write_untyped(export, path, cells))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, "x", b"\xff", 1.5, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("column", ["start", "end", "correlationId", "globalPid", "streamId", "deviceId"])
@pytest.mark.parametrize("table", [KERNEL, MEMCPY])
def test_a_bad_row_of_a_device_is_refused_or_left_out_with_a_word(
    tmp_path: Path, table: str, column: str, value: object
) -> None:
    """What it says of the other rows is right: no fewer than those, and no more."""
    path = write_untyped(small_export(), tmp_path / "synthetic.sqlite", {(table, 0, column): value})  # type: ignore[dict-item]
    found = answer_of(path)
    assert isinstance(found, str) or EVENTS - 1 <= found <= EVENTS


# ---- SQL of the file


def test_no_sql_of_the_file_is_run(tmp_path: Path) -> None:
    """Each in little time and memory: refused, or as if the table were missing."""
    files = sql_of_the_file(tmp_path / "files")
    found = dict(zip(files, answers_elsewhere(list(files.values())), strict=True))
    for name, answer in found.items():
        assert answer.cpu_s < 10, name
        assert answer.peak_mb < 500, name
        if name in ("a trigger", "an index over an expression"):
            assert answer.found == EVENTS, name
        else:
            assert isinstance(answer.found, str) or answer.found <= EVENTS - 4, (name, answer.found)


def test_a_table_of_another_form_is_read_or_refused(tmp_path: Path) -> None:
    """Without row ids; with columns of that name; with columns in another order, of odd names and kinds; with rows that
    are older than a column."""
    columns = "start, 'end', deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName"
    plain = columns.replace("'", '"')
    each = plain.split(", ")
    copied = (f"ALTER TABLE {KERNEL} RENAME TO k", f"INSERT INTO {KERNEL} ({plain}) SELECT {plain} FROM k")
    early = ", ".join(name for name in each if name != "globalPid")
    forms: dict[str, tuple[str, ...]] = {
        "without row ids": (f"CREATE TABLE {KERNEL} ({plain}, PRIMARY KEY (correlationId, start)) WITHOUT ROWID",),
        "row ids of its own": (f"CREATE TABLE {KERNEL} (rowid TEXT, _rowid_ TEXT, oid TEXT, {plain})",),
        "one row id of its own": (f"CREATE TABLE {KERNEL} (_rowid_ TEXT, {plain})",),
        "odd names": (f'CREATE TABLE {KERNEL} ("a""b\'; --" , "" , " start", [x y], `select`, {plain})',),
        "turned round": (f"CREATE TABLE {KERNEL} ({', '.join(reversed(each))})",),
        "strict": (f"CREATE TABLE {KERNEL} ({', '.join(f'{name} INTEGER' for name in each)}) STRICT",),
        "a key": (f"CREATE TABLE {KERNEL} ({plain.replace('correlationId', 'correlationId INTEGER PRIMARY KEY')})",),
        "a key of texts": (f"CREATE TABLE {KERNEL} ({plain}, PRIMARY KEY (correlationId, start))",),
        "a stored column": (f"CREATE TABLE {KERNEL} (a AS (start + 1) STORED, {plain})",),
        "a column that is made": (f"CREATE TABLE {KERNEL} (a AS (start + 1), {plain})",),
        "wide": (f"CREATE TABLE {KERNEL} ({', '.join(f'c{n}' for n in range(200))}, {plain})",),
        "older rows": (
            f"CREATE TABLE {KERNEL} ({early})",
            f"INSERT INTO {KERNEL} SELECT {early} FROM k",
            f"ALTER TABLE {KERNEL} ADD COLUMN globalPid INTEGER DEFAULT {global_id(7000)}",
        ),
    }
    refused = ("without row ids", "row ids of its own")
    for number, (name, create) in enumerate(forms.items()):
        path = changed(tmp_path / f"{number}.sqlite", copied[0], *create, *(copied[1:] if len(create) == 1 else ()))
        found = answer_of(path)
        assert found == EVENTS or (name in refused and isinstance(found, str)), (name, found)
        if found == EVENTS:
            assert figures_of(path) == figures_of(changed(tmp_path / "plain.sqlite")), name


def figures_of(path: Path) -> object:
    """Return what is measured: programs with their time and runs, and copies."""
    (file,) = trace_file(str(path)).files
    return file.programs, file.other_copies, file.classified_ps


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA page_size = 65536",
        "PRAGMA page_size = 512",
        "PRAGMA auto_vacuum = FULL",
        f"CREATE INDEX _tool_kernels ON {KERNEL} (start)",
        'CREATE TABLE "a\'b""; DROP TABLE StringIds; --" (x)',
        "PRAGMA application_id = 1234",
        "PRAGMA user_version = -5",
    ],
)
def test_a_database_may_be_of_any_form(tmp_path: Path, statement: str) -> None:
    assert answer_of(changed(tmp_path / "synthetic.sqlite", statement, "VACUUM")) == EVENTS


def test_a_database_in_another_encoding_is_read(tmp_path: Path) -> None:
    """SQLite gives every text as UTF-8, whatever the file has."""
    source = changed(tmp_path / "utf8.sqlite")
    connection = sqlite3.connect(source)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    script = list(connection.iterdump())
    connection.close()
    path = tmp_path / "synthetic.sqlite"
    other = sqlite3.connect(path)
    other.execute("PRAGMA encoding = 'UTF-16le'")
    other.executescript("\n".join(script))
    other.close()
    assert answer_of(path) == EVENTS
    assert trace_file(str(path)).files[0].programs == trace_file(str(source)).files[0].programs


def test_rows_that_are_only_in_a_log_beside_are_not_lost_without_a_word(tmp_path: Path) -> None:
    """A tool that has added an index may have left its write-ahead log."""
    source = small_export().write(tmp_path / "source.sqlite")
    writer = sqlite3.connect(source, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute(f"DELETE FROM {KERNEL}")
    path = tmp_path / "copy" / "synthetic.sqlite"
    path.parent.mkdir()
    for end in ("", "-wal"):
        (path.parent / (path.name + end)).write_bytes(Path(str(source) + end).read_bytes())
    writer.close()
    assert (path.parent / "synthetic.sqlite-wal").stat().st_size > 0
    found = answer_of(path)
    if isinstance(found, int):
        said = trace_file(str(path)).report
        assert any("-wal" in text or "log" in text for text in (*said.limits, *(gap.reason for gap in said.unknown)))
    else:
        assert "-wal" in found or "log" in found


def test_a_database_that_was_left_in_the_mode_of_a_log_is_read(tmp_path: Path) -> None:
    path = changed(tmp_path / "synthetic.sqlite", "PRAGMA journal_mode = WAL")
    assert answer_of(path) == EVENTS


def test_a_file_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    path = changed(tmp_path / "folder" / "synthetic #1 100%?.sqlite")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert answer_of(path) == EVENTS
    finally:
        path.parent.chmod(0o755)


# ---- size


def grown(path: Path, *statements: str) -> Path:
    """Write the small export with rows that statements add."""
    return changed(path, "PRAGMA journal_mode = OFF", "BEGIN", *statements, "COMMIT")


MORE = (
    "registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, "
    "localMemoryPerThread, localMemoryTotal, gridId, tensorSizeMinusOneElements"
)
"""What a kernel must also have."""


def rows(count: int) -> str:
    return f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {count})"


def many_rows(path: Path, count: int) -> Path:
    """Write kernels, their calls and ranges: ``count`` of each, and copies a tenth of that."""
    device = "deviceId, contextId, streamId, correlationId, globalPid"
    own = f"0, 1, 13, 100000 + x, {(1 << 48) | 7000 << 24}"
    thread = (1 << 48) | 7000 << 24 | 7000
    begin = "1000000 + 1000 * x"
    return grown(
        path,
        f'INSERT INTO {KERNEL} (start, "end", {device}, demangledName, shortName, {MORE}) {rows(count)} '
        f"SELECT {begin}, {begin} + 900, {own}, 11, 11, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, '[]' FROM c",
        f'INSERT INTO {MEMCPY} (start, "end", {device}, bytes, copyKind, srcKind, dstKind) {rows(count // 10)} '
        f"SELECT {begin}, {begin} + 900, {own.replace('13', '20', 1)}, 4096, 2, 2, 1 FROM c",
        f'INSERT INTO {RUNTIME} (start, "end", eventClass, globalTid, correlationId, nameId, returnValue) '
        f"{rows(count)} SELECT {begin} - 500, {begin} - 400, 1, {thread}, 100000 + x, 11, 0 FROM c",
        f'INSERT INTO NVTX_EVENTS (start, "end", eventType, globalTid, domainId, text) {rows(count)} '
        f"SELECT {begin} - 600, {begin} - 300, 59, {thread}, 1, 'Thunk:#hlo_op=fusion.' || (x % 50) || '#' FROM c",
    )


def test_many_rows_take_time_and_memory_in_proportion(tmp_path: Path) -> None:
    """A thorough run has 10 million rows."""
    count = 3_300_000 if is_thorough() else 60_000
    path = many_rows(tmp_path / "synthetic.sqlite", count)
    (answer,) = answers_elsewhere([path], limit_s=300, limit_mb=6000)
    assert isinstance(answer.found, str) or answer.found == EVENTS + count + count // 10
    assert answer.cpu_s < 5 + 3.1 * count * 8e-6
    assert answer.peak_mb < 300 + 3.1 * count * 5e-4


def test_a_crowded_page_does_not_make_rows_of_two_bytes(tmp_path: Path) -> None:
    """All pointers of a page may lead to one row, so that a small file seems to have any number of rows."""
    path = many_rows(tmp_path / "synthetic.sqlite", 100_000)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA page_size = 65536")
        connection.commit()
        connection.execute("VACUUM")
    connection.close()
    crowd(path, KERNEL)
    (answer,) = answers_elsewhere([path], limit_s=60, limit_mb=3000)
    assert isinstance(answer.found, str) or answer.found < 250_000
    assert answer.peak_mb < 400


def test_deeply_nested_ranges_take_time_in_proportion(tmp_path: Path) -> None:
    """A search through all ranges around each call would be quadratic."""
    count = 300_000 if is_thorough() else 60_000
    thread = (1 << 48) | 7000 << 24 | 7001
    path = grown(
        tmp_path / "synthetic.sqlite",
        f'INSERT INTO NVTX_EVENTS (start, "end", eventType, globalTid, domainId, text) {rows(count)} '
        f"SELECT x, {4 * count} - x, 59, {thread}, 1, 'Thunk:#hlo_op=a.' || x || '#' FROM c",
        f'INSERT INTO {RUNTIME} (start, "end", eventClass, globalTid, correlationId, nameId, returnValue) '
        f"{rows(count)} SELECT {2 * count} - {count // 2} + x, {2 * count} - {count // 2} + x + 1, 1, {thread}, "
        f"900000 + x, 11, 0 FROM c",
    )
    (answer,) = answers_elsewhere([path], limit_s=120, limit_mb=3000)
    assert answer.found == EVENTS or isinstance(answer.found, str)
    assert answer.cpu_s < 20


def test_ranges_that_cross_each_other_take_time_in_proportion(tmp_path: Path) -> None:
    """Push and pop cannot make them, a file can."""
    count = 60_000
    thread = (1 << 48) | 7000 << 24 | 7001
    path = grown(
        tmp_path / "synthetic.sqlite",
        f'INSERT INTO NVTX_EVENTS (start, "end", eventType, globalTid, domainId, text) {rows(count)} '
        f"SELECT x, {count} + x, 59, {thread}, 1, 'Thunk:#hlo_op=a.' || x || '#' FROM c",
        f'INSERT INTO {RUNTIME} (start, "end", eventClass, globalTid, correlationId, nameId, returnValue) '
        f"{rows(count)} SELECT 2 * x, 2 * x + 1, 1, {thread}, 900000 + x, 11, 0 FROM c",
    )
    (answer,) = answers_elsewhere([path], limit_s=120, limit_mb=3000)
    assert answer.cpu_s < 20


def test_a_million_texts_and_a_huge_one_are_read_in_proportion(tmp_path: Path) -> None:
    count, size = (1_000_000, 100_000_000) if is_thorough() else (200_000, 20_000_000)
    many = grown(
        tmp_path / "many.sqlite",
        f"INSERT INTO StringIds (id, value) {rows(count)} SELECT 1000000 + 5 * x, 'kernel_' || x FROM c",
    )
    huge = changed(tmp_path / "huge.sqlite")
    connection = sqlite3.connect(huge)
    connection.execute("INSERT INTO StringIds VALUES (?, ?)", (999_999, "Thunk:#hlo_op=" + "x" * size))
    thread = (1 << 48) | 7000 << 24 | 7000
    connection.executemany(
        'INSERT INTO NVTX_EVENTS (start, "end", eventType, globalTid, textId) VALUES (?, ?, 59, ?, 999999)',
        [(5_000_000 + 10 * n, 5_000_009 + 10 * n, thread) for n in range(2000)],
    )
    connection.execute(f"UPDATE {KERNEL} SET shortName = 999999, demangledName = 999999")
    connection.commit()
    connection.close()
    for answer in answers_elsewhere([many, huge], limit_s=120, limit_mb=4000):
        assert answer.found == EVENTS or isinstance(answer.found, str)
        assert answer.cpu_s < 15
        assert answer.peak_mb < 200 + 12 * size / 1e6


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"])
def test_devices_and_threads_without_number_are_bounded(tmp_path: Path, table: str) -> None:
    """A hundred thousand processes, streams or threads, one row each."""
    count = 100_100 if is_thorough() else 8_000
    device = "deviceId, contextId, streamId, correlationId, globalPid"
    statement = (
        f'INSERT INTO {KERNEL} (start, "end", {device}, demangledName, shortName, {MORE}) {rows(count)} '
        f"SELECT x, x + 1, x, x, x, x, x << 24, 11, 11, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, '' FROM c"
        if table == KERNEL
        else f'INSERT INTO NVTX_EVENTS (start, "end", eventType, globalTid, domainId, text) {rows(count)} '
        f"SELECT x, x + 1, 59, x, x, 'Thunk:#hlo_op=a#' FROM c"
    )
    (answer,) = answers_elsewhere([grown(tmp_path / "synthetic.sqlite", statement)], limit_s=120, limit_mb=3000)
    assert answer.cpu_s < 30
    assert answer.peak_mb < 1500
