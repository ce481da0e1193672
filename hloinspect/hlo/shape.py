"""Shapes, layouts and memory spaces, as XLA prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from hloinspect.errors import HloParseError

HOST_MEMORY_SPACE = 5
"""Memory space of pinned host memory on every platform: ``S(5)`` in a layout (xla/layout.h,
``Layout::kHostMemorySpace``)."""

MAX_NESTING = 64
"""Deepest nesting of tuples. No compiler makes deeper ones, and a reader that recurses needs a limit."""

MAX_ELEMENTS = 1 << 63
"""Most elements of an array, as in XLA. Sizes must stay numbers that a float can hold."""

_BITS = {
    "pred": 8,
    "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4,
    "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
    "f4e2m1fn": 4,
    "token": 0, "opaque": 0,
}  # fmt: skip


def dtype_bits(dtype: str) -> int:
    """Return the bits of one element of ``dtype`` (an XLA primitive type's lower-case name), or 0 for tokens and
    unknown types.

    Every ``f8...`` type has 8 bits (xla_data.proto, PrimitiveType). A predicate takes a byte.
    """
    bits = _BITS.get(dtype)
    if bits is None:
        return 8 if dtype.startswith("f8") else 0
    return bits


@dataclass(frozen=True)
class Shape:
    """An array, a token, or a tuple of shapes. ``minor_to_major`` is empty where no layout is printed."""

    dtype: str
    dims: tuple[int, ...] = ()
    memory_space: int = 0
    minor_to_major: tuple[int, ...] = ()
    elements: tuple[Shape, ...] = ()

    @property
    def is_tuple(self) -> bool:
        """Return whether it is a tuple."""
        return self.dtype == "tuple"

    @cached_property
    def element_count(self) -> int:
        """Return the elements of an array: 1 for a scalar, 0 for tuples."""
        if self.is_tuple:
            return 0
        count = 1
        for dim in self.dims:
            count *= dim
        return count

    @cached_property
    def size_bytes(self) -> int:
        """Return the bytes without padding. Each array is rounded up to whole bytes, and a tuple is the sum of its
        elements."""
        if self.is_tuple:
            return sum(element.size_bytes for element in self.elements)
        return (self.element_count * dtype_bits(self.dtype) + 7) // 8

    @cached_property
    def leaves(self) -> tuple[tuple[tuple[int, ...], Shape], ...]:
        """Return every part that is no tuple with its index path, in order. An array has the one path ``()``."""
        return tuple(self._walk(()))

    def _walk(self, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Shape]]:
        if not self.is_tuple:
            yield path, self
            return
        for index, element in enumerate(self.elements):
            yield from element._walk((*path, index))

    @cached_property
    def host_bytes(self) -> int:
        """Return the bytes of the leaves that lie in pinned host memory."""
        return sum(leaf.size_bytes for _, leaf in self.leaves if leaf.on_host)

    @property
    def on_host(self) -> bool:
        """Return whether this array lies in pinned host memory. It is False for a tuple, whose leaves have to be
        checked."""
        return self.memory_space == HOST_MEMORY_SPACE

    def at(self, path: tuple[int, ...]) -> Shape | None:
        """Return the part at an index path, or None where there is none."""
        shape = self
        for index in path:
            if not 0 <= index < len(shape.elements):
                return None
            shape = shape.elements[index]
        return shape

    def __str__(self) -> str:
        if self.is_tuple:
            return "(" + ", ".join(map(str, self.elements)) + ")"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^{}]*)\})?")
_MEMORY_SPACE = re.compile(r"S\((\d{1,9})\)")
_SPACE_OR_COMMENT = re.compile(r"(?:\s|/\*[^*]*\*/)*")
_NO_SHAPE = Shape("tuple")


def _dimension(text: str) -> int:
    """Return the size of a dimension. That of a dynamic one (``<=8``, ``?``) is its bound."""
    digits = text.strip().removeprefix("<=")
    if digits == "?":
        return 1
    if not digits.isdecimal() or len(digits) > 18:
        raise HloParseError(f"not a dimension: {text[:40]!r}")
    return int(digits)


def check_size(dims: Sequence[int]) -> None:
    """Raise HloParseError for an array of more than MAX_ELEMENTS elements."""
    count = 1
    for dim in dims:
        count *= max(dim, 1)
        if count > MAX_ELEMENTS:
            raise HloParseError("an array has more elements than 64 bits can count")


def _array(match: re.Match[str]) -> Shape:
    dtype, dims, layout = match.groups()
    sizes = tuple(_dimension(dim) for dim in dims.split(",")) if dims.strip() else ()
    check_size(sizes)
    if not layout:
        return Shape(dtype, sizes)
    order, _, rest = layout.partition(":")
    space = _MEMORY_SPACE.search(rest)
    minor_to_major = tuple(
        int(axis.strip()) for axis in order.split(",") if axis.strip().isdecimal() and len(axis) < 10
    )
    return Shape(dtype, sizes, int(space.group(1)) if space else 0, minor_to_major)


def _parse(text: str, position: int, depth: int) -> tuple[Shape, int]:
    if depth > MAX_NESTING:
        raise HloParseError(f"a shape is nested deeper than {MAX_NESTING} tuples")
    position = _SPACE_OR_COMMENT.match(text, position).end()  # type: ignore[union-attr]  # matches the empty string
    if text.startswith("b(", position):  # a buffer of that shape (shape_util.cc, PrintHumanString)
        shape, position = _parse(text, position + 2, depth + 1)
        if text[position : position + 1] != ")":
            raise HloParseError(f"a buffer shape is not closed: {text[:40]!r}")
        return shape, position + 1
    if text[position : position + 1] != "(":
        match = _ARRAY.match(text, position)
        if match is None:
            raise HloParseError(f"not a shape: {text[position : position + 40]!r}")
        return _array(match), match.end()
    elements = []
    position = _SPACE_OR_COMMENT.match(text, position + 1).end()  # type: ignore[union-attr]
    while text[position : position + 1] != ")":
        element, position = _parse(text, position, depth + 1)
        elements.append(element)
        position = _SPACE_OR_COMMENT.match(text, position).end()  # type: ignore[union-attr]
        if text[position : position + 1] == ",":
            position = _SPACE_OR_COMMENT.match(text, position + 1).end()  # type: ignore[union-attr]
        elif text[position : position + 1] != ")":
            raise HloParseError(f"a tuple shape is not closed: {text[:40]!r}")
    position += 1
    return (Shape("tuple", elements=tuple(elements)) if elements else _NO_SHAPE), position


@lru_cache(maxsize=65536)
def parse_shape(text: str) -> Shape:
    """Return the shape in ``text``, such as ``bf16[8,4096]{1,0:T(8,128)(2,1)S(5)}`` or ``(f32[], u32[]{:S(2)})``.

    Raises HloParseError if it is no shape. Results are cached: a module repeats a few hundred shapes.
    """
    shape, end = _parse(text, 0, 0)
    if text[end:].strip():
        raise HloParseError(f"text after a shape: {text[end : end + 40]!r}")
    return shape
