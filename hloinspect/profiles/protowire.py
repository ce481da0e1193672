"""Writers of protobuf messages of which only a few fields are needed, without a schema (protobuf's encoding guide)."""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """Return a number as a varint: seven bits a byte, the lowest first.

    A negative number is written as the 64 bits of its two's complement.
    """
    value &= _MASK
    if value < 128:
        return bytes((value,))
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def integer_field(field: int, value: int) -> bytes:
    """Return a field of an integer or enum type (not sint or fixed)."""
    return encode_varint(field << 3) + encode_varint(value)


def fixed64_field(field: int, value: int) -> bytes:
    """Return a field of type fixed64."""
    return encode_varint(field << 3 | 1) + struct.pack("<Q", value & _MASK)


def double_field(field: int, value: float) -> bytes:
    """Return a field of type double."""
    return encode_varint(field << 3 | 1) + struct.pack("<d", value)


def string_field(field: int, value: str) -> bytes:
    """Return a field of type string."""
    return message_field(field, value.encode("utf-8", "replace"))


def message_field(field: int, content: bytes) -> bytes:
    """Return a field that holds a message, or of type bytes."""
    return encode_varint(field << 3 | 2) + encode_varint(len(content)) + content
