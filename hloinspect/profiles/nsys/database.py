"""SQLite files, read as data: tables of integers become columns of numpy, and nothing of a file is run.

A SQLite file from elsewhere is hostile input: it may hold views, triggers, virtual tables and generated columns (SQL of
the file that a query would run), damaged trees, and values of any type in any column. So only real tables are read, by
columns that hold values, without indexes. SQLite refuses all else that a query would touch (``_Guard``), stops after
more steps than a file of its size can need, and lets no statement attach another file or write.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from hloinspect.errors import InputError
from hloinspect.profiles.content import SQLITE_MAGIC
from hloinspect.profiles.nsys.pages import ABSENT, ROW, map_pages
from hloinspect.timeline.spans import Flags, Ints

CHUNK_ROWS = 1 << 17
"""Rows that are read together. A column of them is a text of about 2 MB, and larger ones are no faster."""

MAX_TABLES = 10_000
MAX_CELL_BYTES = 1 << 25
"""The most bytes of one value. A column of a chunk is such a value while it is read."""

_LEAST_ROW_BYTES = 6
"""A row in a SQLite file: place, size, number, and a record's head of two bytes."""

_STEPS_BEFORE, _STEPS_A_BYTE, _STEPS_BETWEEN = 100_000_000, 40, 1_000_000
_READABLE = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
_FUNCTIONS = frozenset({"count", "group_concat", "ifnull", "length", "max", "min", "substr", "typeof"})
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_CELL_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1 << 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 2,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 4,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 10,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_COMMA, _MINUS, _ZERO, _NINE = b",-09"
_PLAIN = b"0123456789,"
_NUMBER = re.compile(rb"-?[0-9]{1,19}")
_ROW_NUMBERS = ("_rowid_", "rowid", "oid")

Cell = int | float | str | bytes | None


__all__ = ["ABSENT", "ROW", "Cell", "Database"]


class Database:
    """A SQLite file that is open for reading. Close it, or use it in a ``with`` statement.

    ``notes`` says what of the file was left out: cells of another type than a number, tables that are none.
    """

    def __init__(self, path: str | Path, name: str = "") -> None:
        """Open a file. ``name`` is what errors call it, by default its path. Raises InputError."""
        self.name = name or str(path)
        self.notes: list[str] = []
        self._size_bytes = _check_size(path, self.name)
        with self._errors():
            self._connection = _connect(path, self._size_bytes)
        self._columns: dict[str, tuple[str, ...]] = {}
        self._pages = map_pages(path)
        self.notes += _notes_of_logs(path)
        try:
            self._roots = self._real_tables()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table that hold values, () where there is no such table."""
        if table not in self.tables:
            return ()
        if table not in self._columns:
            with self._errors():
                rows = self._connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchmany(MAX_TABLES)
            self._columns[table] = tuple(str(row[1]) for row in rows)
        return self._columns[table]

    def integers(self, table: str, columns: Sequence[str], where: str = "") -> dict[str, Ints]:
        """Return columns of a table, one element for each row, in the order of the rows.

        A column that the table lacks, and a cell without an integer, give ``ABSENT``. ``where`` is a condition of ours
        over columns that the table has. ``ROW`` is the column of SQLite's own numbers of rows. Raises InputError.
        """
        own = self.columns(table)
        known = [column for column in columns if column in own or (column == ROW and own)]
        parts: dict[str, list[Ints]] = {column: [] for column in known}
        rows = wrong = 0
        parsed = self._from_pages(table, known) if known and not where else None
        for chunk, count, odd in parsed or (self._chunks(table, known, where) if known else ()):
            rows, wrong = rows + count, wrong + odd
            for column, values in zip(known, chunk, strict=True):
                parts[column].append(values)
        if wrong:
            self.notes.append(f"{wrong:,} cells of {table} hold no integer where there should be one: not used")
        none = np.zeros(0, np.int64)
        found = {column: np.concatenate(own) if own else none for column, own in parts.items()}
        absent = np.broadcast_to(np.int64(ABSENT), (rows,))
        return {column: found.get(column, absent) for column in columns}

    def rows(
        self, table: str, columns: Sequence[str], where: str = "", most: int = 1 << 24
    ) -> Iterator[tuple[Cell, ...]]:
        """Yield rows of a table, at most ``most``. A column that the table lacks gives None. Raises InputError."""
        known = self.columns(table)
        if not any(column in known for column in columns):
            return
        chosen = ", ".join(_quoted(column) if column in known else "NULL" for column in columns)
        condition = f" WHERE {where}" if where else ""
        with self._errors():
            cursor = self._connection.execute(f"SELECT {chosen} FROM {_quoted(table)} NOT INDEXED{condition}")
            cursor.arraysize = 1000
        count = 0
        while count < most:
            with self._errors():
                found = cursor.fetchmany()
            if not found:
                return
            yield from found
            count += len(found)

    def numbered(self, table: str, expression: str, where: str) -> Iterator[tuple[int, bytes]]:
        """Yield SQLite's number of each row that meets a condition of ours, and a text of it (an expression of
        ours) as UTF-8."""
        number = self._row_number(table)
        query = f"SELECT {number}, {expression} FROM {_quoted(table)} NOT INDEXED WHERE {where}"
        with self._errors():
            self._connection.text_factory = bytes  # texts repeat: decoding each would take most of the time
            try:
                cursor = self._connection.execute(query)
                while rows := cursor.fetchmany(10_000):
                    yield from ((row, text) for row, text in rows if isinstance(text, bytes))
            finally:
                self._connection.text_factory = _text

    def texts(self, table: str, key: str, value: str, wanted: Flags | frozenset[int], most: int) -> dict[int, str]:
        """Return the first ``most`` characters of a text column by an integer column, for the wanted integers."""
        if not {key, value} <= set(self.columns(table)):
            return {}
        short = f"substr({_quoted(value)}, 1, {most})"
        found: dict[int, str] = {}
        with self._errors():
            cursor = self._connection.execute(f"SELECT {_quoted(key)}, {short} FROM {_quoted(table)} NOT INDEXED")
            cursor.arraysize = 10_000
            while rows := cursor.fetchmany():
                found.update((number, str(text)) for number, text in rows if number in wanted)
        return found

    # ---- reading

    @property
    def tables(self) -> Collection[str]:
        """Return the names of the tables that are in the file itself: no views, no virtual tables."""
        return self._roots.keys()

    def _real_tables(self) -> dict[str, int]:
        """Return the first page of each table that is in the file itself, by name."""
        with self._errors():
            rows = self._connection.execute(
                "SELECT name, type, rootpage FROM sqlite_master WHERE type = 'table' OR type = 'view'"
            ).fetchmany(MAX_TABLES + 1)
        if len(rows) > MAX_TABLES:
            raise InputError(
                f"{self.name}: expected an export of Nsight Systems, found more than {MAX_TABLES:,} tables"
            )
        real = {str(name): root for name, kind, root in rows if kind == "table" and isinstance(root, int) and root > 0}
        unreal = sorted(str(name) for name, *_ in rows if str(name) not in real)
        if unreal:
            self.notes.append(f"{len(unreal)} views or virtual tables are not read, such as {unreal[0][:60]}")
        return real

    def _chunks(self, table: str, columns: Sequence[str], where: str) -> Iterator[tuple[list[Ints], int, int]]:
        """Yield the columns of parts of a table, the number of rows, and how many cells hold something else.

        Rows are taken by their numbers. Where these have large gaps, as in no export, they are counted instead.
        """
        number = self._row_number(table)
        low, high = (self._one(f"SELECT {end}({number}) FROM {_quoted(table)} NOT INDEXED") for end in ("min", "max"))
        if low is None or high is None:
            return
        is_dense = high - low < self._size_bytes
        named = (f"{number if column == ROW else _quoted(column)} AS c{place}" for place, column in enumerate(columns))
        inner = f"SELECT {number} AS r, {', '.join(named)} FROM {_quoted(table)} NOT INDEXED WHERE {number} > ?"
        inner += f" AND {number} <= ?{f' AND ({where})' if where else ''}"
        inner += "" if is_dense else f" ORDER BY {number} LIMIT {CHUNK_ROWS}"  # which is slower
        cells = ", ".join(f"group_concat(ifnull(c{place}, ''))" for place in range(len(columns)))
        query = f"SELECT count(*), max(r), {cells} FROM ({inner})"
        last, total = low - 1, 0
        while last < high:
            until = last + CHUNK_ROWS if is_dense else high
            with self._errors():
                count, reached, *texts = self._connection.execute(query, (last, until)).fetchone()
            total += count
            if count > CHUNK_ROWS or total > self._size_bytes // _LEAST_ROW_BYTES or (count and reached <= last):
                raise InputError(f"{self.name}: table {table} is damaged: it has more rows than the file can hold")
            if count:
                parsed = [_parsed(text.encode("utf-8", "replace"), count) for text in texts]
                yield [values for values, _ in parsed], count, sum(wrong for _, wrong in parsed)
            if not is_dense and count < CHUNK_ROWS:
                return
            last = until if is_dense else reached

    def _one(self, query: str) -> int | None:
        with self._errors():
            (value,) = self._connection.execute(query).fetchone()
        return value if isinstance(value, int) else None

    def _from_pages(self, table: str, columns: Sequence[str]) -> list[tuple[list[Ints], int, int]] | None:
        """Return the columns as one part, read from the file's pages, or None where SQLite has to read them.

        It has to where a column is the row's number by another name, or is not among the row's values.
        """
        if self._pages is None:
            return None
        with self._errors():
            rows = self._connection.execute(f"PRAGMA table_xinfo({_quoted(table)})").fetchmany(MAX_TABLES)
        own = self.columns(table)
        if [row[1] for row in rows] != list(own) or any(row[5] and row[1] in columns for row in rows):
            return None
        found = self._pages.table(
            self._roots[table], [-1 if column == ROW else own.index(column) for column in columns]
        )
        return None if found is None else [(found[0], len(found[0][0]), found[1])]

    def _row_number(self, table: str) -> str:
        """Return SQLite's name for the numbers of a table's rows, which is no column of it."""
        columns = [column.lower() for column in self.columns(table)]
        number = next((name for name in _ROW_NUMBERS if name not in columns), None)
        if number is None:
            raise InputError(f"{self.name}: table {table} has no numbers of rows: not an export of Nsight Systems")
        return number

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise every error of SQLite as one line."""
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(f"{self.name}: {_explained(error)}") from None
        except (ValueError, UnicodeError, OverflowError) as error:  # a name with a zero byte
            raise InputError(f"{self.name}: cannot be read: {error}") from None


def _connect(path: str | Path, size_bytes: int) -> sqlite3.Connection:
    place = quote(os.fsencode(os.path.abspath(path)))
    connection = sqlite3.connect(
        f"file://{place}?mode=ro&immutable=1",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=8,
    )
    try:
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "temp_store=MEMORY", "mmap_size=0"):
            connection.execute(f"PRAGMA {pragma}")
        connection.text_factory = _text
        steps = _Steps(_STEPS_BEFORE + _STEPS_A_BYTE * size_bytes)
        connection.set_progress_handler(steps.more, _STEPS_BETWEEN)
        connection.set_authorizer(_may)
    except BaseException:
        connection.close()
        raise
    return connection


class _Steps:
    """The steps that SQLite may still take."""

    def __init__(self, most: int) -> None:
        self._left = most

    def more(self) -> int:
        """Count steps, and return 1 where there are none left: SQLite then ends the statement."""
        self._left -= _STEPS_BETWEEN
        return int(self._left < 0)


def _may(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    """Return whether a statement may do an action: read tables, and call the few functions that we use. No part of a
    view or trigger may."""
    if trigger is not None:
        return sqlite3.SQLITE_DENY
    allowed = action in _READABLE
    allowed |= action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS
    allowed |= action == sqlite3.SQLITE_PRAGMA and first in ("table_info", "table_xinfo")
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _quoted(name: str) -> str:
    """Return a name for SQL. Names are those of tables and columns that the file has."""
    return '"' + name.replace('"', '""') + '"'


def _check_size(path: str | Path, name: str) -> int:
    """Return the size of a SQLite file. Raises InputError where it is none, or shorter than its first page says."""
    try:
        with open(path, "rb") as file:
            head = file.read(100)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{name}: cannot be read: {reason}") from None
    if not head.startswith(SQLITE_MAGIC):
        raise InputError(f"{name}: expected an SQLite file, found a file of another kind")
    # The SQLite file format, section 1.3: size of a page at 16 (1 is 65536), pages at 28 where 24 and 92 agree.
    page = int.from_bytes(head[16:18], "big")
    page = 1 << 16 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    if len(head) < 100 or (head[24:28] == head[92:96] and pages * page > size):
        whole = f" of {pages * page:,}" if pages * page > size else ""
        raise InputError(f"{name}: an SQLite file that is cut off: {size:,}{whole} bytes (an incomplete download?)")
    return size


def _notes_of_logs(path: str | Path) -> list[str]:
    """Return what to say of logs beside a file, which hold changes that are not in it yet. They are not read."""
    found = []
    for end, what in (("-wal", "a write-ahead log"), ("-journal", "a rollback journal")):
        try:
            size = os.path.getsize(f"{os.fspath(path)}{end}")
        except (OSError, ValueError):
            continue
        if size:
            found.append(
                f"{Path(path).name}{end} is {what} beside the profile, and is not read: the file may be half written "
                "or lack rows (open it once with sqlite3, or export it again)"
            )
    return found


def _explained(error: sqlite3.Error) -> str:
    text = " ".join(str(error).split())[:200]
    if "malformed" in text or "not a database" in text or "disk I/O" in text:
        return f"the SQLite file is damaged or cut off (an incomplete download or copy?): {text}"
    if "interrupted" in text:
        return "reading it takes more steps than a sound file of its size: the SQLite file is damaged"
    if "prohibited" in text or "not authorized" in text:
        return f"it holds more than plain tables, and nothing else is read: {text}"
    return f"SQLite cannot read it: {text}"


# ---- numbers


def _parsed(cells: bytes, count: int) -> tuple[Ints, int]:
    """Return the numbers of a chunk of a column, and how many cells hold something else that is not NULL.

    Numbers are parsed together where each cell has one or is empty (NULL). An empty cell becomes ``ABSENT``.
    """
    commas = cells.count(b",")
    if commas != count - 1:  # a text with a comma, of a hostile file
        return np.full(count, ABSENT), count
    if commas == len(cells):
        return np.full(count, ABSENT), 0
    if cells.translate(None, _PLAIN):
        data = np.frombuffer(cells, np.uint8)
        if not _are_signs(data, ((data < _ZERO) | (data > _NINE)) & (data != _COMMA)):
            return _parsed_singly(cells, count)
    if b",," not in cells and cells[0] != _COMMA != cells[-1]:
        return np.fromstring(cells, np.int64, sep=","), 0
    data = np.frombuffer(cells, np.uint8)
    is_comma = data == _COMMA
    empty = np.diff(np.flatnonzero(is_comma), prepend=-1, append=len(data)) == 1
    is_comma[1:] &= is_comma[:-1]  # a comma behind one, or at the begin, ends an empty cell
    values = np.full(count, ABSENT)
    values[~empty] = np.fromstring(data[~is_comma].tobytes().rstrip(b","), np.int64, sep=",")
    return values, 0


def _are_signs(data: NDArray[np.uint8], others: Flags) -> bool:
    """Return whether all other bytes than digits and commas are a minus before a digit, and after no digit."""
    places = np.flatnonzero(others)
    if (data[places] != _MINUS).any() or places[-1] == len(data) - 1 or (data[places + 1] == _COMMA).any():
        return False
    return bool((data[np.maximum(places - 1, 0)] == _COMMA)[places > 0].all())


def _parsed_singly(cells: bytes, count: int) -> tuple[Ints, int]:
    values, wrong = np.full(count, ABSENT), 0
    for place, cell in enumerate(cells.split(b",")):
        is_number = _NUMBER.fullmatch(cell) is not None
        number = int(cell) if is_number else 0
        if is_number and abs(number) < 1 << 63:
            values[place] = number
        else:
            wrong += int(bool(cell))
    return values, wrong
