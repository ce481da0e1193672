"""Files of traces: mapped where they are plain, unpacked into memory where they are gzipped."""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path
from typing import BinaryIO, NoReturn

from hloinspect.errors import InputError
from hloinspect.profiles.xplane.wire import Buffer

MAX_UNPACKED_BYTES = 1 << 32
"""Most bytes to which a gzipped trace may unpack, since it is then held in memory. Users can unpack a larger one."""

EXPECTED = (
    "expected a profiler's trace (an XSpace *.xplane.pb, a Chrome trace, or what Nsight Systems or nsys-jax writes)"
)
GZIP = b"\x1f\x8b"


def refuse(name: str, found: str) -> NoReturn:
    """Raise InputError for a file ``name`` that is no trace but ``found``."""
    raise InputError(f"{name}: {EXPECTED}, found {found}")


def map_file(path: str | Path, name: str, max_unpacked_bytes: int | None = None, is_trace: bool = True) -> Buffer:
    """Return the content of a file: mapped, or unpacked if its first bytes are those of gzip.

    If ``is_trace``, its beginning is checked to be that of an XSpace. Raises InputError that begins with ``name``.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(4)
            if head.startswith(GZIP):
                file.seek(0)
                data = _unpack(file, name, max_unpacked_bytes or MAX_UNPACKED_BYTES)
                if is_trace:
                    _check_kind(data[:4], name)
                return data
            if not head:
                refuse(name, "nothing: it is empty")
            if not os.path.isfile(path):
                refuse(name, "no regular file, and a trace is read at random")
            if is_trace:
                _check_kind(head, name)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except IsADirectoryError:
        refuse(name, "a directory")
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{name}: cannot be read: {reason}") from None


def _check_kind(head: bytes, name: str) -> None:
    """Refuse content that is no XSpace, which begins with field 1 to 4 with a length.

    These are a plane, an error, a warning and a host name. Raises InputError.
    """
    if head[0] in (0x0A, 0x12, 0x1A, 0x22):
        return
    if head.lstrip()[:1] in (b"{", b"["):
        refuse(name, "JSON: a Chrome trace? Its name should end in .json or .json.gz")
    refuse(name, "HLO text: a module, not a trace" if head == b"HloM" else "a file of another kind")


def _unpack(file: BinaryIO, name: str, max_bytes: int) -> bytes:
    """Return the unpacked content of a gzip file of one or more members."""
    parts: list[bytes] = []
    total = 0
    packed = zlib.decompressobj(wbits=31)
    try:
        while chunk := file.read(1 << 20):
            while chunk:
                part = packed.decompress(chunk, 1 << 22)
                total += len(part)
                if total > max_bytes:
                    refuse(name, f"more than {max_bytes:,} bytes unpacked: unpack it to a file first")
                parts.append(part)
                chunk = packed.unconsumed_tail
                if packed.eof:
                    chunk = packed.unused_data.lstrip(b"\0")
                    packed = zlib.decompressobj(wbits=31) if chunk else packed
    except zlib.error as error:
        raise InputError(f"{name}: the compressed data are damaged: {error}") from None
    if not packed.eof:
        raise InputError(f"{name}: the compressed data are cut off (an incomplete download or copy?)")
    data = b"".join(parts)
    if not data:
        refuse(name, "nothing: it is empty")
    return data
