"""Loading a module from a file, standard input or bytes: text or proto, plain or compressed.

The content decides which of these it is, not the name. Only the first 64 KiB decide whether the rest is read at all.
Reading stops at a size limit, both packed and unpacked.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn, cast

from hloinspect.errors import HloParseError, InputError
from hloinspect.hlo.model import Module
from hloinspect.hlo.text import parse_text

DEFAULT_MAX_BYTES = 1 << 29
MAX_BYTES_VARIABLE = "HLOINSPECT_MAX_BYTES"
SNIFF_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
EXPECTED = "optimized HLO text (begins with 'HloModule'), or a serialized HloProto/HloModuleProto"
_GIVE_OPTIMIZED = "give the optimized module (compiled.as_text(), or *after_optimizations.txt of --xla_dump_to)"

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_KNOWN = (
    (b"ML\xefR", f"MLIR bytecode: this is StableHLO: {_GIVE_OPTIMIZED}"),
    (_GZIP, "a gzip file inside a compressed file"),
    (_XZ, "an xz file inside a compressed file"),
    (_ZSTD, "a zstd file inside a compressed file"),
    (b"BZh", "a bzip2 file: unpack it first"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x7fELF", "an ELF binary"),
    (b"PAR1", "a Parquet file"),
    (b"\xff\xfe", "UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: save it as UTF-8"),
    *((bytes((0x80, version)), "a Python pickle") for version in range(2, 6)),
)
_MLIR_BEGIN = re.compile(r"(?://[^\n]*\n\s*|#[^\n]*\n\s*)*(?:module\b|\"builtin\.module\"|func\.func\b)")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")


def _refuse(name: str, found: str) -> NoReturn:
    raise InputError(f"{name}: expected {EXPECTED}, found {found}")


# ---- the kind of a file


def _text_kind(text: str) -> str:
    """Return what a text that does not begin with HloModule is, in words for the user."""
    begin = text.lstrip()
    if _MLIR_BEGIN.match(begin) or "stablehlo." in text or "func.func" in text:
        return f"MLIR text: this is StableHLO: {_GIVE_OPTIMIZED}"
    if begin.startswith("{ lambda"):
        return f"a jaxpr: {_GIVE_OPTIMIZED}"
    if begin.startswith(("hlo_module {", "hlo_module{", 'name: "')):
        return "a proto in text format: give the binary one, or HLO text"
    if begin.startswith(("ENTRY ", "%", "ROOT ")) and " = " in begin:
        return "HLO text without its first line 'HloModule NAME'"
    if re.match(r'[\[{]\s*["\[{}\]\d]', begin):
        return "JSON"
    first = begin.partition("\n")[0]
    return f"text that begins with {first[:40]!r}" if first else "only white space"


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a varint and the index behind it, or (-1, position) where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    return -1, position


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, wire type, content) of the fields at the start of a message, which may be cut off anywhere.

    A field number of 0 means that the bytes are no message.
    """
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if tag < 0 and position >= len(data):
            return
        if not 0 < number < 1 << 16 or wire not in (0, 1, 2, 5):
            yield 0, 0, b""
            return
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire in (0, 2):
            size, position = _varint(data, position)
            if size < 0:
                yield (0, 0, b"") if position < len(data) else (number, wire, b"")
                return
        yield number, wire, data[position : position + size] if wire == 2 else b""
        position += size if wire != 0 else 0


def _is_module(head: bytes) -> bool:
    """Return whether the start of a message can be that of an HloModuleProto.

    Field 1 is its name, a printable string. Fields 2 and 3 have a length too (xla/service/hlo.proto).
    """
    named = False
    for number, wire, content in _fields(head):
        if number == 1:
            name = content.decode("utf-8", "replace")
            named = (
                wire == 2 and 0 < len(name) < 4096 and name.isprintable() and "\N{REPLACEMENT CHARACTER}" not in name
            )
        if number == 0 or (number in (1, 2, 3) and wire != 2) or (number == 1 and not named):
            return False
    return named


def _is_proto(head: bytes) -> bool:
    """Return whether the first bytes of a file can be those of an HloModuleProto, or of an HloProto that contains
    one."""
    if _is_module(head):
        return any(number == 3 for number, _, _ in _fields(head)) or len(head) < SNIFF_BYTES
    first = next(_fields(head), (0, 0, b""))
    return first[:2] == (1, 2) and _is_module(first[2])


def sniff(head: bytes, name: str) -> Literal["text", "proto"]:
    """Return whether the first bytes of a file are HLO text or a proto. Raises InputError, which names what they are
    instead."""
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begin.startswith(b"HloModule"):
        return "text"
    if not head:
        _refuse(name, "nothing: it is empty")
    for magic, what in _KNOWN:
        if head.startswith(magic):
            _refuse(name, what)
    if head[257:262] == b"ustar":
        _refuse(name, "a tar archive")
    text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    if not _CONTROL.search(head) and text.count("\N{REPLACEMENT CHARACTER}") <= len(text) // 50:
        _refuse(name, _text_kind(text))
    if _is_proto(head):
        return "proto"
    if head.startswith(b"\x0a") and (b"/device:" in head or b"/host:" in head or b"Task Environment" in head):
        _refuse(name, "a profile (XSpace, *.xplane.pb)")
    _refuse(name, "zeros" if not head.strip(b"\0") else "binary data of another kind")


# ---- reading with a limit


class _Rejoined(io.RawIOBase):
    """A stream that yields first what was read from its start before."""

    def __init__(self, front: bytes, rest: BinaryIO) -> None:
        self._front = memoryview(front)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # io's stub knows no common buffer type
        part: memoryview | bytes
        if self._front:
            part, self._front = self._front[: len(buffer)], self._front[len(buffer) :]
        else:
            part = self._rest.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


def _limit(max_bytes: int | None) -> int:
    if max_bytes is not None:
        return max_bytes
    text = os.environ.get(MAX_BYTES_VARIABLE, "")
    if not text:
        return DEFAULT_MAX_BYTES
    if not (text.isdecimal() and len(text) < 16):
        raise InputError(f"{MAX_BYTES_VARIABLE}: expected a number of bytes, found {text[:40]!r}")
    return int(text)


def _zstd(stream: BinaryIO, name: str) -> BinaryIO:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14

        return cast(BinaryIO, zstd.ZstdFile(stream))
    except ImportError:
        pass
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise InputError(f"{name}: is packed with zstd, which this Python cannot read: pip install zstandard") from None
    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True))


def unpacked(stream: BinaryIO, name: str) -> BinaryIO:
    """Return the stream, unpacked if its first bytes are those of a compressed file."""
    front = stream.read(8)
    whole = cast(BinaryIO, io.BufferedReader(_Rejoined(front, stream), _CHUNK_BYTES))
    if front.startswith(_GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=whole))
    if front.startswith(_XZ):
        return cast(BinaryIO, lzma.LZMAFile(whole))
    return _zstd(whole, name) if front.startswith(_ZSTD) else whole


def _up_to(stream: BinaryIO, size: int, front: bytes = b"") -> bytes:
    """Return ``front`` and the next ``size`` bytes, or fewer at the end. A pipe may deliver them in parts."""
    parts = [front]
    while size > 0 and (part := stream.read(min(size, _CHUNK_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


@contextmanager
def unpack_errors(name: str) -> Iterator[None]:
    """Raise any error of a decompressor or the file system as one line."""
    try:
        yield
    except InputError:
        raise
    except EOFError:
        raise InputError(f"{name}: the compressed data are cut off (an incomplete download or copy?)") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{name}: the compressed data are damaged: {error}") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # compression.zstd and zstandard have one each, and may be missing
            raise
        raise InputError(f"{name}: the compressed data are damaged: {error}") from None


def _read(stream: BinaryIO, name: str, limit: int) -> tuple[bytes, Literal["text", "proto"]]:
    with unpack_errors(name):
        source = unpacked(stream, name)
        head = _up_to(source, min(SNIFF_BYTES, limit + 1))
        kind = sniff(head, name)
        data = _up_to(source, limit + 1 - len(head), head)
    if len(data) > limit:
        how = f"set {MAX_BYTES_VARIABLE} to raise the limit"
        raise InputError(f"{name}: expected at most {limit:,} bytes (unpacked), found more: {how}")
    return data, kind


@contextmanager
def _open(path: str | Path, name: str) -> Iterator[BinaryIO]:
    if str(path) == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError("standard input: expected a module, found a terminal: pipe one in, or name a file")
        yield cast(BinaryIO, sys.stdin.buffer)
        return
    try:
        stream = open(path, "rb")  # noqa: SIM115 # closed below; errors of opening and of reading differ
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{name}: expected {EXPECTED}, found a directory") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{name}: cannot be read: {reason}") from None
    with stream:
        yield stream


# ---- parsing


def _parse(data: bytes, kind: Literal["text", "proto"], name: str) -> Module:
    try:
        if kind == "proto":
            from hloinspect.hlo.proto import parse_proto

            module = parse_proto(data)
        else:
            module = parse_text(data.decode("utf-8-sig", "replace"))
    except HloParseError as error:
        found = HloParseError(f"{name}: {error}")
        found.line, found.column = error.line, error.column
        raise found from None
    if not module.is_scheduled:
        raise InputError(
            f"{name}: expected a module with a schedule, found one that is not optimized: {_GIVE_OPTIMIZED}"
        )
    return module


def load_module_bytes(data: bytes, name: str = "module", *, max_bytes: int | None = None) -> Module:
    """Return the module in ``data``, as ``load_module`` reads it from a file. Errors begin with ``name``."""
    limit = _limit(max_bytes)
    return _parse(*_read(io.BytesIO(data), name, limit), name)


def load_module(path: str | Path, *, max_bytes: int | None = None) -> Module:
    """Return the module in a file, or from standard input if ``path`` is ``-``.

    It is HLO text, HloProto or HloModuleProto: plain, gzip, xz, or zstd where Python can read it. The content decides,
    not the name. ``max_bytes`` limits the unpacked size. The default is the environment's HLOINSPECT_MAX_BYTES, or 512
    MiB.

    Raises InputError for a file that cannot be read, is too large, is of another kind or has no schedule. Raises
    HloParseError (an InputError) for a damaged module. Each is one line that begins with the name of the file.
    """
    limit = _limit(max_bytes)
    name = "standard input" if str(path) == "-" else str(path)
    with _open(path, name) as stream:
        data, kind = _read(stream, name, limit)
    return _parse(data, kind, name)
