"""Which findings are new, gone, or of another severity: sets of (rule, tensor, place), never counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from hloinspect.gate.snapshot import FindingGroup, Subject

WENT, CAME, CHANGED = "went", "came", "changed"
_MAX_NAMED = 4
_SEVERITIES = ("info", "warning", "error")


@dataclass(frozen=True, slots=True)
class FindingChange:
    """``kind`` is came, went, or changed (the severity). A side holds the subjects that it is true of, and their number
    as ``count``."""

    kind: str
    before: FindingGroup | None
    after: FindingGroup | None

    @property
    def group(self) -> FindingGroup:
        """Return the findings as they are now, or were."""
        group = self.after or self.before
        assert group is not None
        return group


_Element = tuple[FindingGroup, Subject]


def finding_changes(before: Sequence[FindingGroup], after: Sequence[FindingGroup]) -> tuple[FindingChange, ...]:
    """Return what is different in ``after``, by rule, tensor and function. A finding that is about another tensor, or
    moved to another function, has gone and come."""
    had, has = list(_elements(before)), list(_elements(after))
    came = [each for each in has if _alike(each, had) is None]
    went = [each for each in had if _alike(each, has) is None]
    pairs = [(old, each) for each in has if (old := _alike(each, had)) is not None]
    changed = [(old, new) for old, new in pairs if old[0].severity != new[0].severity]
    return (
        *(FindingChange(CAME, None, group) for group in _grouped(came)),
        *(FindingChange(WENT, group, None) for group in _grouped(went)),
        *(FindingChange(CHANGED, *_sides(both)) for both in _by_severities(changed)),
    )


def is_new(change: FindingChange) -> bool:
    """Return whether a finding came, or was there and has become worse."""
    before, after = change.before, change.after
    return after is not None and (before is None or _loudness(after) > _loudness(before))


def new_count(changes: Sequence[FindingChange], code: str, severity: str) -> int:
    """Return how many new findings there are of a rule (or all that begin so) and of a severity; "" is any. One that
    has become worse is new of its severity, and not of its rule."""
    return sum(
        change.group.count
        for change in changes
        if is_new(change)
        and change.group.code.startswith(code)
        and severity in ("", change.group.severity)
        and (change.kind == CAME or severity)
    )


def tensor_text(group: FindingGroup) -> str:
    """Return the tensors of a group, by name where they have one: ``hid, bf16[8,128]``. "" where there are none."""
    named = list(dict.fromkeys(s.name or s.array for s in group.subjects or () if s.name or s.array))
    more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    return ", ".join(str(name) for name in named[:_MAX_NAMED]) + more


def _elements(groups: Sequence[FindingGroup]) -> Iterator[_Element]:
    """Yield each group once a subject. Of one that is there in two severities only the worse: it decides."""
    found: dict[tuple[object, ...], _Element] = {}
    for group in sorted(groups, key=_loudness):
        for subject in group.subjects or (Subject(None, None, group.file, group.function, group.line),):
            found[group.code, subject.name, subject.array, _place(subject), group.subjects is None] = group, subject
    yield from found.values()


def _alike(element: _Element, others: Sequence[_Element]) -> _Element | None:
    """Return the other that is the same finding, or None. Of several one of the same name, and then the worst."""
    group, subject = element
    fitting = [
        other
        for other in others
        if other[0].code == group.code
        and (
            _place(other[0]) == _place(group)
            if group.subjects is None or other[0].subjects is None
            else _place(other[1]) == _place(subject) and _same_tensor(other[1], subject)
        )
    ]
    return max(fitting, key=lambda other: (other[1].name == subject.name, _loudness(other[0])), default=None)


def _same_tensor(one: Subject, other: Subject) -> bool:
    """Return whether two tensors have one name or, where a side has none, are arrays of one type and shape."""
    return one.name == other.name if one.name and other.name else one.array == other.array


def _place(one: Subject | FindingGroup) -> tuple[str, str]:
    return PurePath(one.file or "").name, one.function or ""


def _loudness(group: FindingGroup) -> int:
    return _SEVERITIES.index(group.severity)


def _grouped(elements: Sequence[_Element]) -> list[FindingGroup]:
    """Return the elements as groups of one rule, severity and function."""
    found: dict[tuple[str, str, tuple[str, str]], list[_Element]] = {}
    for group, subject in elements:
        found.setdefault((group.code, group.severity, _place(subject)), []).append((group, subject))
    return [_group(found[key]) for key in sorted(found)]


def _group(elements: Sequence[_Element]) -> FindingGroup:
    group, first = elements[0]
    if group.subjects is None:
        return group
    subjects = tuple(subject for _, subject in elements)
    return replace(
        group, file=first.file, function=first.function, line=first.line, count=len(subjects), subjects=subjects
    )


def _by_severities(pairs: Sequence[tuple[_Element, _Element]]) -> list[list[tuple[_Element, _Element]]]:
    found: dict[tuple[str, str, str, tuple[str, str]], list[tuple[_Element, _Element]]] = {}
    for old, new in pairs:
        found.setdefault((new[0].code, new[0].severity, old[0].severity, _place(new[1])), []).append((old, new))
    return [found[key] for key in sorted(found)]


def _sides(pairs: Sequence[tuple[_Element, _Element]]) -> tuple[FindingGroup, FindingGroup]:
    return _group([old for old, _ in pairs]), _group([new for _, new in pairs])
