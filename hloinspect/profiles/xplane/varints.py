"""Reading many varints at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hloinspect.profiles.xplane.wire import BytesLike, WireError
from hloinspect.timeline.spans import Ints

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Places = NDArray[np.void]
Quads = NDArray[np.void]
"""Eight (or four) bytes from each place on. They are not aligned; numpy selects void elements faster than numbers."""


_STOPS = np.uint64(0x8080808080808080)
_PAYLOADS = np.uint64(0x7F7F7F7F7F7F7F7F)
_LENGTHS = np.uint64(0x0102030405060708)
# For halves, quarters and eighths of a word: which groups of bits stay, which move down, and by how much.
_SQUEEZES = tuple(
    tuple(map(np.uint64, step))
    for step in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)


def words_of(data: BytesLike) -> Places:
    """Return the eight bytes from every place of ``data`` (except the last seven) as little-endian numbers."""
    return np.ndarray((max(0, len(data) - 7),), np.dtype("V8"), data, 0, (1,))


def quads_of(data: BytesLike) -> Quads:
    """Return the four bytes from every place of ``data`` (except the last three) as little-endian numbers."""
    return np.ndarray((max(0, len(data) - 3),), np.dtype("V4"), data, 0, (1,))


def read_varints(buffer: Bytes, words: Places, position: Ints) -> tuple[Ints, Ints]:
    """Return the varint at each position, as the int64 of its bits, and the index behind it.

    ``buffer`` must continue for 10 bytes behind the last position. Raises WireError for a longer number.
    """
    byte = buffer[position]
    value = byte.astype(np.int64)
    behind = position + 1
    more = np.flatnonzero(byte > 127)
    if more.size:
        value[more], behind[more] = _read_long(buffer, words, position[more])
    return value, behind


def squeeze(words: Words, size: int = 8) -> Words:
    """Return the numbers whose varints are the lowest ``size`` bytes of words: seven bits of each byte."""
    bits = words & (_PAYLOADS >> np.uint64(8 * (8 - size)))
    for step, (stay, move, by) in enumerate(_SQUEEZES):
        if size > 1 << step:
            bits = (bits & stay) | ((bits & move) >> by)
    return bits


def _read_long(buffer: Bytes, words: Places, position: Ints) -> tuple[Ints, Ints]:
    """Return varints of two to eight bytes, each from one word.

    The lowest clear top bit ends the number. The groups of seven bits below it are moved together.
    """
    word: Words = words[position].view("<u8")
    stop = ~word & _STOPS
    stop &= -stop
    value = squeeze(word & (stop - np.uint64(1))).view(np.int64)
    behind = position + (((stop >> np.uint64(7)) * _LENGTHS) >> np.uint64(56)).view(np.int64)
    longer = np.flatnonzero(stop == 0)
    if longer.size:
        value[longer], behind[longer] = _read_longest(buffer, position[longer])
    return value, behind


def _read_longest(buffer: Bytes, position: Ints) -> tuple[Ints, Ints]:
    """Return varints of nine and ten bytes: unsigned ids, and negative numbers."""
    value = np.zeros(len(position), np.int64)
    for index in range(8):
        value |= (buffer[position + index] & 127).astype(np.int64) << (7 * index)
    ninth, tenth = buffer[position + 8].astype(np.int64), buffer[position + 9].astype(np.int64)
    value |= (ninth & 127) << 56
    is_ten = ninth > 127
    if (is_ten & (tenth > 127)).any():
        raise WireError("it has a number of more than ten bytes")
    value |= np.where(is_ten, tenth << 63, 0)
    return value, position + np.where(is_ten, 10, 9)
