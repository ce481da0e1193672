"""Which points there are to be, in pieces of work that one child process can do.

Points that differ in flags alone share a lowering, and so a child.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloinspect.errors import UsageError
from hloinspect.hardware.target import Target
from hloinspect.options import Production
from hloinspect.plan.axes import FLAGS, POLICY, TARGET, Names, flags_of, literal
from hloinspect.plan.policy import Policy

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """One point to be: its settings as text, and the flags that they mean."""

    number: int
    settings: Settings
    xla_flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Cells of one lowering. ``wanted`` is what the child is asked for (compile/many.py)."""

    wanted: Mapping[str, Any]
    target: Target
    devices: int | None
    topology: str | None
    production: Production | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is planned: a step, or a MaxText configuration (``maxtext`` has the words of its command line).
    ``xla_flags`` are those of every point."""

    step: str
    maxtext: tuple[str, ...] = ()
    devices: int | None = None
    topology: str | None = None
    xla_flags: tuple[str, ...] = ()
    production: Production | None = None
    names: Names = field(default_factory=Names)


def combinations(axes: Mapping[str, Sequence[str]]) -> list[Settings]:
    """Every combination of the axes' values; the last axis changes the fastest. One, without settings, of no axes."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def parse_point(text: str) -> Settings:
    """``policy=offload:hid,flags=no-lhs,batch=4``: one point. Raises UsageError."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name.isidentifier() or not value or name in found or name == TARGET:
            raise UsageError(f"--point {text}: write NAME=VALUE,NAME=VALUE, such as policy=remat,batch=4")
        found[name] = value
    return found


def works_of(
    subject: Subject,
    wanted_points: Iterable[Settings],
    targets: Mapping[str, Target],
    policies: Mapping[str, Policy],
    first: int = 1,
) -> tuple[Work, ...]:
    """The work for these points on every target, numbered from ``first`` in their order."""
    several = len(targets) > 1
    groups: dict[tuple[object, ...], tuple[Settings, Target, list[Cell]]] = {}
    number = first
    for settings in wanted_points:
        rest = tuple(item for item in settings.items() if item[0] != FLAGS)
        flags = flags_of(settings.get(FLAGS, "default"), subject.names, subject.xla_flags)
        for label, target in targets.items():
            own = {**settings, TARGET: label} if several else dict(settings)
            group = groups.setdefault((rest, label), (settings, target, []))
            group[2].append(Cell(number, own, flags))
            number += 1
    return tuple(
        Work(
            requested_of_child(subject, settings, policies),
            target,
            subject.devices,
            subject.topology,
            subject.production,
            tuple(cells),
        )
        for settings, target, cells in groups.values()
    )


def requested_of_child(subject: Subject, settings: Settings, policies: Mapping[str, Policy]) -> dict[str, Any]:
    """A step with keyword arguments, or MaxText with more words, and the policy."""
    policy = policies[settings[POLICY]].request() if POLICY in settings else {}
    rest = {name: text for name, text in settings.items() if name not in (POLICY, FLAGS, TARGET)}
    if subject.maxtext:
        words = [word for word in subject.maxtext if word.partition("=")[0] not in rest]
        return {
            "step": subject.step,
            "maxtext": [*words, *(f"{name}={text}" for name, text in rest.items())],
            **policy,
        }
    return {"step": subject.step, "arguments": {name: literal(text) for name, text in rest.items()}, **policy}
