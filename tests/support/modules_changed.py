"""Modules with one change: other names, two instructions swapped, another kernel. Made from fixtures, as text."""

from __future__ import annotations

import gzip
import random
import re
from functools import cache

from tests.support.places import FIXTURES

RENAMED = (
    "jax0.12.0.1/gb200_offload_scan",
    "jax0.12.0.1/gb200_optimizer",
    "jax0.10.2/gb200_offload_scan_pipelined",
    "jax0.12.0.1/v6e_offload_scan",
)
_NAME = re.compile(r"%([\w.\-]+)")


@cache
def source_of(name: str) -> str:
    """Return the text of a fixture."""
    return gzip.decompress((FIXTURES / name / "module.hlo.txt.gz").read_bytes()).decode()


def renamed(text: str, chance: random.Random) -> str:
    """Return a module with another name for every instruction and computation."""
    names = sorted(set(_NAME.findall(text)))
    numbers = list(range(len(names)))
    chance.shuffle(numbers)
    new = {name: f"other_{number}" for name, number in zip(names, numbers, strict=True)}
    return _NAME.sub(lambda match: "%" + new[match[1]], text)


def swapped(text: str, first: str, second: str) -> str:
    """Return a module with the lines of two instructions in each other's place."""
    lines = text.split("\n")
    places = [place for place, line in enumerate(lines) if line.lstrip().startswith((f"%{first} = ", f"%{second} = "))]
    assert len(places) == 2, (first, second, places)
    one, other = places
    lines[one], lines[other] = lines[other], lines[one]
    return "\n".join(lines)


def line_of(text: str, name: str) -> str:
    """Return the line that defines an instruction."""
    (found,) = [line for line in text.split("\n") if line.lstrip().startswith(f"%{name} = ")]
    return found
