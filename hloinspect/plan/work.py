"""The points that are requested, in pieces of work that one child process can do.

Points that differ in flags alone share a lowering, and so a child.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hloinspect.compile.protocol import StepRequest
from hloinspect.errors import UsageError
from hloinspect.hardware.target import Target
from hloinspect.options import CompileOptions
from hloinspect.plan.axes import FLAGS, POLICY, TARGET, Names, flags_of, literal
from hloinspect.plan.policy import Policy

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """A point that is requested: its settings as text, and the flags that they mean."""

    number: int
    settings: Settings
    xla_flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Cells of one lowering. ``request`` is the step that the child makes; the flags are those of the cells."""

    request: StepRequest
    target: Target
    compiling: CompileOptions
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is planned: a step, or a MaxText configuration (``maxtext`` has the words of its command line).
    ``compiling`` has the options of every point."""

    step: str
    maxtext: tuple[str, ...] = ()
    compiling: CompileOptions = field(default_factory=CompileOptions)
    names: Names = field(default_factory=Names)


def combinations(axes: Mapping[str, Sequence[str]]) -> list[Settings]:
    """Return every combination of the axes' values; the last axis changes the fastest. One, without settings, of no
    axes."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def parse_point(text: str) -> Settings:
    """Read one point, such as ``policy=offload:hid,flags=no-lhs,batch=4``. Raises UsageError."""
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
    """Return the work for these points on every target, numbered from ``first`` in their order."""
    several = len(targets) > 1
    groups: dict[tuple[object, ...], tuple[Settings, Target, list[Cell]]] = {}
    number = first
    for settings in wanted_points:
        rest = tuple(item for item in settings.items() if item[0] != FLAGS)
        flags = flags_of(settings.get(FLAGS, "default"), subject.names, subject.compiling.xla_flags)
        for label, target in targets.items():
            own = {**settings, TARGET: label} if several else dict(settings)
            group = groups.setdefault((rest, label), (settings, target, []))
            group[2].append(Cell(number, own, flags))
            number += 1
    compiling = replace(subject.compiling, xla_flags=())
    return tuple(
        Work(step_request(subject, settings, policies), target, compiling, tuple(cells))
        for settings, target, cells in groups.values()
    )


def step_request(subject: Subject, settings: Settings, policies: Mapping[str, Policy]) -> StepRequest:
    """Return the step of these settings: one with keyword arguments, or MaxText with more words, and the policy."""
    rest = {name: text for name, text in settings.items() if name not in (POLICY, FLAGS, TARGET)}
    if subject.maxtext:
        words = [word for word in subject.maxtext if word.partition("=")[0] not in rest]
        more = (f"{name}={text}" for name, text in rest.items())
        request = StepRequest(step=subject.step, maxtext=(*words, *more))
    else:
        request = StepRequest(step=subject.step, arguments={name: literal(text) for name, text in rest.items()})
    return policies[settings[POLICY]].of_step(request) if POLICY in settings else request
