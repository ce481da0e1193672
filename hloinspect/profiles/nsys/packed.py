"""SQLite exports that are packed: unpacked into a temporary file, since SQLite reads a file at random."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hloinspect.errors import InputError
from hloinspect.hlo.load import unpack_errors, unpacked
from hloinspect.profiles.content import is_packed
from hloinspect.profiles.nsys.sqlite import open_sqlite
from hloinspect.profiles.xplane.space import XSpace

MAX_UNPACKED_BYTES = 1 << 34
"""Most bytes of a temporary file: 80 million rows. Users can unpack a larger one."""

_PART_BYTES = 1 << 20


def open_export(path: str | Path) -> XSpace:
    """Return the profile in an SQLite export, which may be packed (gzip, xz, zstd). Raises InputError."""
    if not is_packed(path):
        return open_sqlite(path)
    with unpacked_file(path) as file:
        return open_sqlite(file, str(path))


@contextmanager
def unpacked_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file with the unpacked content, which is removed afterwards. Raises InputError."""
    name = str(path)
    with temporary_folder(name) as folder:
        target, written = folder / "unpacked", 0
        with unpack_errors(name), open(path, "rb") as packed, target.open("wb") as file:
            source = unpacked(packed, name)
            while part := source.read(_PART_BYTES):
                written += len(part)
                if written > MAX_UNPACKED_BYTES:
                    raise InputError(
                        f"{name}: more than {MAX_UNPACKED_BYTES:,} bytes unpacked: unpack it to a file first"
                    )
                file.write(part)
        yield target


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Yield a folder that is removed afterwards. Raises InputError, which begins with ``name``."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="hloinspect-", ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError(f"{name}: no temporary folder can be made: {error.strerror or os.strerror(0)}") from None
    with folder as place:
        yield Path(place)
