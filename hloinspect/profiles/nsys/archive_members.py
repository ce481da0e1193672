"""Files of an nsys-jax archive: a zip, its unpacked directory, or ``trace.parquet`` beside dumped modules.

Nothing is unpacked to a path that an archive names: members are read into memory, up to a limit that counts what is
really unpacked. No package is imported here, so that recognizing an archive is fast.
"""

from __future__ import annotations

import io
import lzma
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from hloinspect.errors import InputError, printable

if TYPE_CHECKING:
    import zipfile

TRACE = "nvtx_gpu_proj_trace/trace.parquet"
LOOSE_TRACE = "trace.parquet"
MAX_MEMBER_BYTES = 1 << 30
"""Most bytes of a member that is read, unpacked. A step of 1,000 operations on 4 devices takes 150 KB."""

MAX_LISTING_BYTES = 1 << 26
"""Most bytes of a zip's list of members, about 500,000 of them."""

MAX_XZ_MEMORY_BYTES = 1 << 28
"""Most memory that unpacking a member may need besides its content. ``xz -9`` makes files that need 65 MiB."""

MAX_ENTRIES = 10_000
"""Most zips and folders in a directory that are looked at."""

MAX_FOOTER_BYTES = 1 << 24
EXPECTED = "expected an archive of nsys-jax"
_ZIP, _PARQUET, _XZ, _GZIP = b"PK\x03\x04", b"PAR1", b"\xfd7zXZ\x00", b"\x1f\x8b"
_COMPRESSIONS = (0, 8)  # stored, deflated (zipfile.ZIP_STORED, ZIP_DEFLATED)
_PART_BYTES = 1 << 20
_COLUMNS = ((b"Projected Start", b"Projected Duration"), (b"Stack Level", b"Range ID"))
"""Names of columns of a projected trace, of which a footer has one pair: until nsys 2024.4, and later."""


class Members(Protocol):
    """Files of an archive by name, with slashes. ``path`` is what the user named."""

    @property
    def path(self) -> str:
        """Return what the user named."""

    def names(self) -> Sequence[str]:
        """Return the names of all files, sorted."""

    def read(self, name: str, max_bytes: int = MAX_MEMBER_BYTES) -> bytes:
        """Return the content of a file. Raises InputError, also where it is larger than ``max_bytes``."""


def is_nsys_jax(path: str | Path) -> bool:
    """Return whether a file or directory is an archive of nsys-jax, by its content.

    It is a zip with ``nvtx_gpu_proj_trace/trace.parquet``, its unpacked directory, a projected trace as a Parquet file,
    or a directory with one called ``trace.parquet``. A path that cannot be read is none.
    """
    path = Path(path)
    try:
        if path.is_dir():
            inside = path / TRACE
            return inside.is_dir() or _is_projected(inside) or _is_projected(path / LOOSE_TRACE)
        return _is_zip(path) or _is_projected(path)
    except (OSError, ValueError, InputError):
        return False


def find_archives(directory: str | Path) -> tuple[Path, ...]:
    """Return the archives of one run in a directory, sorted by name: the directory itself if it is one, or else the
    zips and unpacked zips in it, one for each process.

    An archive of nsys-jax-combine that lies beside those that it was made of is returned alone, and so is a zip beside
    the directory of its name. It is empty where there are none. Raises InputError for a damaged zip, and OSError where
    the directory cannot be read.
    """
    directory = Path(directory)
    if is_nsys_jax(directory):
        return (directory,)
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(".zip") or entry.is_dir()]
    found = [path for name in sorted(names)[:MAX_ENTRIES] if is_nsys_jax(path := directory / name)]
    zips = {path.stem for path in found if not path.is_dir()}
    found = [path for path in found if not path.is_dir() or path.name not in zips]
    stems = {path: path.stem for path in found}
    for path in found:
        ranks = ranks_of(open_members(path), TRACE)
        if len(ranks) > 1 and {stem for other, stem in stems.items() if other != path} <= set(ranks):
            return (path,)
    return tuple(found)


def open_members(path: str | Path) -> Members:
    """Return the files of an archive, of its unpacked directory, or beside a ``trace.parquet``. Raises InputError."""
    name, path = str(path), Path(path)
    with _errors(name):
        if path.is_dir():
            return _Directory(name, path)
        if _starts_with(path, _ZIP):
            return _Zip(name, path)
        if _starts_with(path, _PARQUET):
            parent = path.resolve().parent
            if parent.name == TRACE.partition("/")[0] and path.name == LOOSE_TRACE:
                return _Directory(name, parent.parent)
            return _Directory(name, parent, path.name)
        if not path.exists():
            raise InputError(f"{name}: no such file or directory")
        _refuse(name, "a file of another kind")


def ranks_of(members: Members, name: str) -> Mapping[str, str]:
    """Return the members that hold a file, by process. nsys-jax-combine makes a folder of a file that differs.

    The key is "" for a file that is one for all. It is empty where there is none.
    """
    names = members.names()
    if name in names:
        return {"": name}
    return {rank: full for full in names if full.startswith(name + "/") and (rank := full[len(name) + 1 :])}


def unpacked(data: bytes, name: str, max_bytes: int = MAX_MEMBER_BYTES) -> bytes:
    """Return data, unpacked if they are xz or gzip. Raises InputError where they are damaged, or larger than
    ``max_bytes``."""
    if not data.startswith((_XZ, _GZIP)):
        return data
    with _errors(name):
        if data.startswith(_GZIP):
            import gzip

            return _up_to(gzip.GzipFile(fileobj=io.BytesIO(data)), name, max_bytes)
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY_BYTES)
        found = stream.decompress(data, max_bytes + 1)
        if len(found) > max_bytes:
            _too_large(name, max_bytes)
        if not stream.eof:
            raise EOFError
        return found


# ---- kinds of files


def _starts_with(path: Path, magic: bytes) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _is_zip(path: Path) -> bool:
    if not _starts_with(path, _ZIP):
        return False
    return any(name == TRACE or name.startswith(TRACE + "/") for name in _Zip(str(path), path).names())


def _is_projected(path: Path) -> bool:
    """Return whether a file is a projected trace: a Parquet file whose footer has the names of its columns."""
    if not _starts_with(path, _PARQUET):
        return False
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 12:
            return False
        file.seek(size - 8)
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _PARQUET or length > min(size - 12, MAX_FOOTER_BYTES):
            return False
        file.seek(size - 8 - length)
        footer = file.read(length)
    return any(all(column in footer for column in columns) for columns in _COLUMNS)


# ---- places


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory with the files of an archive. ``trace`` is the name of a projected trace that has no archive."""

    path: str
    root: Path
    trace: str = LOOSE_TRACE

    def names(self) -> Sequence[str]:
        found = []
        if not (self.root / TRACE).exists():
            found = [name for name in _files_in(self.root) if name != LOOSE_TRACE and name != self.trace]
            return sorted([*found, TRACE]) if (self.root / self.trace).is_file() else found
        for folder in ("", "dump", *(TRACE.partition("/")[0],)):
            for entry in _files_in(self.root / folder):
                found.append(f"{folder}/{entry}" if folder else entry)
            for inner in _folders_in(self.root / folder):
                name = f"{folder}/{inner}" if folder else inner
                found += [f"{name}/{entry}" for entry in _files_in(self.root / name)] if "." in inner else []
        return sorted(found)

    def read(self, name: str, max_bytes: int = MAX_MEMBER_BYTES) -> bytes:
        path = self.root / name
        if name == TRACE and not path.exists():
            path = self.root / self.trace
        with _errors(str(path)):
            if not path.is_file():
                raise InputError(f"{path}: no regular file")
            with path.open("rb") as file:
                return _up_to(file, str(path), max_bytes)


class _Zip:
    """A zip, whose list of members is read once."""

    def __init__(self, path: str, file: Path) -> None:
        self._path = path
        self._file = file
        with _errors(path), _opened(file) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
        self._members = {member.filename: member for member in members}
        if len(self._members) < len(members):
            _refuse(path, "a zip with two members of one name")

    @property
    def path(self) -> str:
        return self._path

    def names(self) -> Sequence[str]:
        return sorted(self._members)

    def read(self, name: str, max_bytes: int = MAX_MEMBER_BYTES) -> bytes:
        shown = f"{self._path}: {printable(name)}"
        member = self._members[name]
        if member.compress_type not in _COMPRESSIONS:  # zipfile unpacks the others without a limit
            raise InputError(f"{shown}: packed in a way that nsys-jax does not use (only deflate is read)")
        if member.file_size > max_bytes:
            _too_large(shown, max_bytes)
        with _errors(shown), _opened(self._file) as archive, archive.open(member) as stream:
            return _up_to(stream, shown, max_bytes)


class _BoundedFile(io.FileIO):
    """A file that refuses to be read in large parts. The list of members of a zip is read in one part."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_LISTING_BYTES:
            raise InputError(f"{self.name}: its list of members is larger than {MAX_LISTING_BYTES:,} bytes")
        return super().read(-1 if size is None else size) or b""


@contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    import zipfile

    with _BoundedFile(file, "r") as stream, zipfile.ZipFile(stream) as archive:
        yield archive


def _files_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_file()) if folder.is_dir() else []


def _folders_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


# ---- reading with a limit


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _up_to(stream: _Readable, name: str, max_bytes: int) -> bytes:
    """Return all that a stream yields. Raises InputError where that is more than ``max_bytes``."""
    parts, size = [], 0
    while part := stream.read(_PART_BYTES):
        size += len(part)
        if size > max_bytes:
            _too_large(name, max_bytes)
        parts.append(part)
    return b"".join(parts)


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Raise any error of a decompressor, the file system or a zip as one line that begins with ``name``."""
    from hloinspect.hlo.load import unpack_errors

    try:
        with unpack_errors(name):
            yield
    except InputError:
        raise
    except ValueError as error:  # a name with a zero byte
        raise InputError(f"{name}: cannot be read: {error}") from None
    except Exception as error:  # zipfile has several of its own: BadZipFile, RuntimeError (encrypted), KeyError
        if type(error).__module__ not in ("zipfile", "builtins", "struct") or isinstance(error, MemoryError):
            raise
        raise InputError(f"{name}: the zip is damaged or of an unknown kind: {' '.join(str(error).split())}") from None


def _too_large(name: str, max_bytes: int) -> NoReturn:
    raise InputError(f"{name}: expected at most {max_bytes:,} bytes (unpacked), found more")


def _refuse(name: str, found: str) -> NoReturn:
    raise InputError(f"{name}: {EXPECTED} (a zip, its directory, or trace.parquet), found {found}")
