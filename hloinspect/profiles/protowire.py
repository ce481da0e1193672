"""Writes protobuf messages of which only a few fields are needed, without a schema (protobuf's encoding guide)."""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A number, seven bits a byte, the lowest first; a negative one as the 64 bits of its two's complement."""
    value &= _MASK
    if value < 128:
        return bytes((value,))
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def number(field: int, value: int) -> bytes:
    """A field of an integer or enum type (not sint or fixed)."""
    return varint(field << 3) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return varint(field << 3 | 1) + struct.pack("<Q", value & _MASK)


def double(field: int, value: float) -> bytes:
    """A field of type double."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def text(field: int, value: str) -> bytes:
    """A field of type string."""
    return message(field, value.encode("utf-8", "replace"))


def message(field: int, content: bytes) -> bytes:
    """A field that holds a message, or of type bytes."""
    return varint(field << 3 | 2) + varint(len(content)) + content
