"""Which target a device is, by the name that its driver, XLA or a profiler gives it.

A target declares the names of its device (``device_names``). A name belongs to a target if it is one of them, or
consists of the same words. A name with more or fewer words is another machine: a part of a GPU ("NVIDIA H100 80GB HBM3
MIG 1g.10gb"), a card of another form ("NVIDIA H200 NVL") or a model that is not known ("NVIDIA H800").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MEMORY_SLACK = 0.12
"""Memory of a device may differ by this share from its target's. A driver keeps a part for itself, and vendors count in
GB or GiB; sizes of one model differ by a third or more (40 and 80 GB, 96 and 141 GB)."""

_MAKERS = frozenset({"nvidia", "amd", "google", "instinct"})
"""Words that some programs leave out."""

_LONGEST_NAME = 256
"""Characters that a name may have; CUDA's have at most 255."""

_WORD = re.compile(r"[a-z0-9.]+")
_SIZE = re.compile(r"(\d+)gi?b")


@dataclass(frozen=True, slots=True)
class Declared:
    """What a target says of its device."""

    target: str
    names: tuple[str, ...]
    memory_bytes: float


def target_named(known: Sequence[Declared], name: str, memory_bytes: float | None = None) -> str | None:
    """Return the target whose device has this name, or None where no target, or more than one, has it.

    ``memory_bytes`` is the device's memory, None where it is not known. It decides between devices of one name, and a
    device whose memory is another size is no device of the target.
    """
    if len(name) > _LONGEST_NAME or not _words(name):
        return None
    for reading in (_plain, _words):
        wanted = reading(name)
        found = (one for one in known if wanted in map(reading, one.names))
        fitting = {one.target for one in found if _fits(one, memory_bytes)}
        if fitting:
            return fitting.pop() if len(fitting) == 1 else None
    return None


def is_named(names: Iterable[str], name: str) -> bool:
    """Return whether ``name`` is one of ``names``, or consists of the same words as one."""
    if len(name) > _LONGEST_NAME:
        return False
    wanted = _words(name)
    return any(_plain(one) == _plain(name) or _words(one) == wanted for one in names)


def _fits(one: Declared, memory_bytes: float | None) -> bool:
    return not memory_bytes or abs(memory_bytes - one.memory_bytes) <= MEMORY_SLACK * one.memory_bytes


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name in order of the alphabet, without those of the maker; 80GB and 80G are one."""
    words = _WORD.findall(_plain(name))
    return tuple(sorted(_SIZE.sub(r"\1g", word) for word in words if word not in _MAKERS))
