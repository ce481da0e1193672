"""Findings that are new, gone, or of another severity: sets of (rule, tensor, place), never counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from hloinspect.gate.snapshot import FindingGroup, Subject
from hloinspect.kinds import ChangeKind
from hloinspect.rules.rule import SEVERITIES
from hloinspect.thresholds import SHOWN_NAMES
from hloinspect.units import listed

WENT: Final = "went"
CAME: Final = "came"
CHANGED: Final = "changed"


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A difference of findings; ``kind`` is came, went, or changed (the severity).

    Each side has the subjects that it is true of, and their number as ``count``.
    """

    kind: ChangeKind
    """Whether the findings came, went or changed their severity."""

    before: FindingGroup | None
    """The group on the first side, with only the subjects that came, went or changed."""

    after: FindingGroup | None
    """The group on the second side, with only the subjects that came, went or changed."""

    @property
    def group(self) -> FindingGroup:
        """Return the findings as they are now, or were."""
        group = self.after or self.before
        assert group is not None
        return group


_Place = tuple[str, str]
_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Element:
    """One subject of a group, or a group without subjects. ``rank`` is higher for a worse severity.

    Places and keys are made once for each: a file may hold many.
    """

    group: FindingGroup
    subject: Subject
    rank: int
    place: _Place
    key: _Key
    """The identity that separates it from the other findings of its side."""

    by_name: _Key
    by_array: _Key
    by_group: _Key


def finding_changes(before: Sequence[FindingGroup], after: Sequence[FindingGroup]) -> tuple[FindingChange, ...]:
    """Return what is different in ``after``, by rule, tensor and function.

    A finding about another tensor, or in another function, is one that went and one that came.
    """
    had, has = _elements(before), _elements(after)
    old_of, new_of = _same_in(has, had), _same_in(had, has)
    for old, new in _pairs_by_array([e for e in had if e.key not in new_of], [e for e in has if e.key not in old_of]):
        old_of[new.key], new_of[old.key] = old, new
    came = [each for each in has if each.key not in old_of]
    went = [each for each in had if each.key not in new_of]
    pairs = [(old_of[each.key], each) for each in has if each.key in old_of]
    changed = [(old, new) for old, new in pairs if old.group.severity != new.group.severity]
    return (
        *(FindingChange(CAME, None, group) for group in _grouped(came)),
        *(FindingChange(WENT, group, None) for group in _grouped(went)),
        *(FindingChange(CHANGED, *_sides(both)) for both in _by_severities(changed)),
    )


def is_new(change: FindingChange) -> bool:
    """Return whether a finding came, or was there and has become worse."""
    before, after = change.before, change.after
    return after is not None and (before is None or _rank(after) > _rank(before))


def new_count(changes: Sequence[FindingChange], code: str, severity: str) -> int:
    """Return the number of new findings of a rule (or all that begin so) and of a severity; "" is any.

    One that has become worse is new of its severity, and not of its rule.
    """
    return sum(
        change.group.count
        for change in changes
        if is_new(change)
        and change.group.code.startswith(code)
        and severity in ("", change.group.severity)
        and (change.kind == CAME or severity)
    )


def finding_tensors_text(group: FindingGroup) -> str:
    """Return the tensors of a group, by name where they have one: ``hid, bf16[8,128]``. It is "" where there are
    none."""
    named = list(dict.fromkeys(s.name or s.array for s in group.subjects or () if s.name or s.array))
    return listed(named, SHOWN_NAMES)


def _elements(groups: Sequence[FindingGroup]) -> list[_Element]:
    """Return each group once for each subject. Of one with two severities only the worse stays, which decides."""
    found: dict[_Key, _Element] = {}
    for group in sorted(groups, key=_rank):
        group_place = _place(group)
        for subject in group.subjects or (Subject(None, None, group.file, group.function, group.line),):
            element = _element(group, subject, group_place)
            found[element.key] = element
    return list(found.values())


def _element(group: FindingGroup, subject: Subject, group_place: _Place) -> _Element:
    code, place, name, array = group.code, _place(subject), subject.name or None, subject.array or None
    return _Element(
        group=group,
        subject=subject,
        rank=_rank(group),
        place=place,
        key=("exact", code, place, name, array, group.subjects is None),
        by_name=("name", code, place, name),
        by_array=("array", code, place, array),
        by_group=("group", code, group_place),
    )


def _same_in(elements: Sequence[_Element], others: Sequence[_Element]) -> dict[_Key, _Element]:
    """Return, by the key of each element, the other that is the same finding by its tensor's name.

    Findings about no tensor are the same where their place is. So are all of a place where a side recorded no tensors.
    """
    exact, by_name, by_group, bare = _indexes(others)
    found: dict[_Key, _Element] = {}
    for each in elements:
        other = exact.get(each.key)
        if other is None and each.group.subjects is None:
            other = by_group.get(each.by_group)
        elif other is None:
            other = by_name.get(each.by_name) or bare.get(each.by_group)
        if other is not None:
            found[each.key] = other
    return found


def _indexes(elements: Sequence[_Element]) -> tuple[Mapping[_Key, _Element], ...]:
    """Return the elements by key, by name, by the place of their group, and those without subjects by that place.

    Of several the worst stays: they come in that order.
    """
    with_name = {each.by_name: each for each in elements if each.subject.name}
    bare = {each.by_group: each for each in elements if each.group.subjects is None}
    return {each.key: each for each in elements}, with_name, {each.by_group: each for each in elements}, bare


def _pairs_by_array(had: Sequence[_Element], has: Sequence[_Element]) -> list[tuple[_Element, _Element]]:
    """Return pairs of arrays of one type and shape, of which a side knows no name.

    Each is in one pair at most, so that a finding does not stand for a second one. (Two without a name are in none:
    their keys are the same.)
    """
    pairs = [(old, new) for new, old in _named_ones(has, had)]
    return pairs + _named_ones(had, has)


def _named_ones(unnamed: Sequence[_Element], others: Sequence[_Element]) -> list[tuple[_Element, _Element]]:
    """Return each array without a name with one of the others that has one: of its severity, else the worst."""
    named: dict[_Key, list[_Element]] = {}
    for other in others:
        if other.subject.name and other.subject.array:
            named.setdefault(other.by_array, []).append(other)
    return [
        (each, max(named[each.by_array], key=lambda other: (other.rank == each.rank, other.rank, other.subject.name)))
        for each in unnamed
        if not each.subject.name and each.by_array in named
    ]


def _place(one: Subject | FindingGroup) -> _Place:
    return PurePath(one.file or "").name, one.function or ""


def _rank(group: FindingGroup) -> int:
    """Return a number that is higher for a worse severity."""
    return -SEVERITIES.index(group.severity)


def _grouped(elements: Sequence[_Element]) -> list[FindingGroup]:
    """Return the elements as groups of one rule, severity and function."""
    found: dict[tuple[str, str, _Place], list[_Element]] = {}
    for each in elements:
        found.setdefault((each.group.code, each.group.severity, each.place), []).append(each)
    return [_group(found[key]) for key in sorted(found)]


def _group(elements: Sequence[_Element]) -> FindingGroup:
    group, first = elements[0].group, elements[0].subject
    if group.subjects is None:
        return group
    subjects = tuple(each.subject for each in elements)
    return replace(
        group, file=first.file, function=first.function, line=first.line, count=len(subjects), subjects=subjects
    )


def _by_severities(pairs: Sequence[tuple[_Element, _Element]]) -> list[list[tuple[_Element, _Element]]]:
    found: dict[tuple[str, str, str, _Place], list[tuple[_Element, _Element]]] = {}
    for old, new in pairs:
        found.setdefault((new.group.code, new.group.severity, old.group.severity, new.place), []).append((old, new))
    return [found[key] for key in sorted(found)]


def _sides(pairs: Sequence[tuple[_Element, _Element]]) -> tuple[FindingGroup, FindingGroup]:
    return _group([old for old, _ in pairs]), _group([new for _, new in pairs])
