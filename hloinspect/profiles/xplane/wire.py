"""Reading the fields of serialized messages in place, without decoding the file.

This is scalar code for what is few: planes, lines, metadata. The events are decoded together in ``columns.py``.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

Buffer = bytes | mmap.mmap
BytesLike = Buffer | memoryview

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(Exception):
    """Bytes that are no message. The reader adds the file's name and raises an InputError."""


def varint(data: BytesLike, position: int, end: int) -> tuple[int, int]:
    """Return an unsigned varint and the index behind it. Raises WireError where it runs past ``end``."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise WireError("it is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
    raise WireError("it has a number of more than ten bytes")


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as the signed one of the same bits (int64 fields and program ids,
    ``embedded.py``)."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return value - (1 << 64) if value >> 63 else value


def fields(data: BytesLike, position: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (number, wire type, value, content start, content end) of each field of the message in ``[position, end)``.

    ``value`` is that of a varint, else 0. The content is that of a string or message. Raises WireError.
    """
    while position < end:
        tag, position = varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise WireError("it has a field without a number")
        if wire == VARINT:
            value, position = varint(data, position, end)
            yield number, wire, value, position, position
            continue
        if wire == BYTES:
            size, position = varint(data, position, end)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise WireError("it has a field of an unknown wire type")
        if size > end - position:
            raise WireError("it is cut off")
        yield number, wire, 0, position, position + size
        position += size
