"""What a profile is, by its first bytes. The name of a file says nothing that its content does not say better.

Commands that also take modules look here at every input, so this imports neither numpy nor a reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from hloinspect.errors import InputError

Content = Literal["sqlite", "nsys-rep", "nsys-jax", "chrome", "other"]
"""Kinds of files: SQLite, a report of nsys, a zip or Parquet file (as nsys-jax writes them), JSON; other: an XSpace,
or no profile."""

SQLITE: Final = "sqlite"
REPORT: Final = "nsys-rep"
ARCHIVE: Final = "nsys-jax"
CHROME: Final = "chrome"
OTHER: Final = "other"

SQLITE_MAGIC = b"SQLite format 3\0"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
PACKED = (b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")
"""First bytes of gzip, xz and zstd."""

RAW_SUFFIXES = (".qdrep", ".qdstrm")
"""Names of what older versions of nsys wrote, and of a capture before its conversion. Their first bytes are not
known."""

NSYS_SUFFIXES = (".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst", ".nsys-rep")
_ARCHIVES = (b"PK\x03\x04", b"PAR1")
_XSPACE_TAGS = b"\x0a\x12\x1a\x22"
_HEAD_BYTES = 64


def content_of(path: str | Path) -> Content:
    """Return what a file is. What cannot be read, or is a directory, is ``other``: its reader says why.

    JSON may begin with white space, and so may an XSpace: there the name decides.
    """
    path = Path(path)
    try:
        head = head_of(path)
    except (OSError, ValueError, InputError):
        return OTHER
    if head.startswith(SQLITE_MAGIC):
        return SQLITE
    if head.startswith(REPORT_MAGIC):
        return REPORT
    if head.startswith(_ARCHIVES):
        return ARCHIVE
    is_json = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
    named = path.name.endswith((".json", ".json.gz"))
    if named and (is_json or head[:1] not in _XSPACE_TAGS):
        return CHROME
    return CHROME if is_json and head[:1] not in _XSPACE_TAGS else OTHER


def may_be_nsys(path: str | Path) -> bool:
    """Return whether a file may be what Nsight Systems or nsys-jax wrote. A zip or Parquet file may be anything else
    too."""
    return content_of(path) in (SQLITE, REPORT, ARCHIVE) or Path(path).name.endswith(RAW_SUFFIXES)


def is_packed(path: str | Path) -> bool:
    """Return whether a file is packed. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(8).startswith(PACKED)


def head_of(path: str | Path) -> bytes:
    """Return the first bytes of a regular file, unpacked if it is packed. Raises OSError and InputError."""
    path = Path(path)
    if not path.is_file():
        return b""
    if not is_packed(path):
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    from hloinspect.hlo.load import unpack_errors, unpacked

    name = str(path)
    with unpack_errors(name), path.open("rb") as file:
        return unpacked(file, name).read(_HEAD_BYTES)
