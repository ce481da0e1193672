"""Differences between two answers: which transfer came, went, moved, lost its cover or grew, and the possible causes.

Transfers are matched by direction, tensor, loop and source. Names of instructions, line numbers and the order in the
schedule do not count. What one side does not have is searched again with fewer conditions: without the loop (a scan was
unrolled, or its first iteration peeled off), without the name, without the source, and at last by source alone (the
shape changed).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeVar

from hloinspect.gate.configured import configuration_changes, list_change
from hloinspect.gate.findings import CAME, CHANGED, WENT, FindingChange, finding_changes
from hloinspect.gate.snapshot import DIRECTIONS, FindingGroup, Snapshot, TransferGroup
from hloinspect.kinds import ChangeKind, MetricUnit
from hloinspect.thresholds import UNSEEN_SHARE

_Word = TypeVar("_Word", bound=str)


@dataclass(frozen=True, slots=True)
class MetricChange:
    """A figure on both sides."""

    metric: str
    """Name of the figure."""

    before: float | None
    """Its value on the first side; null where that does not know it."""

    after: float | None
    """Its value on the second side; null where that does not know it."""

    unit: MetricUnit
    """Unit of both values."""


@dataclass(frozen=True, slots=True)
class TransferChange:
    """A difference of one group of transfers."""

    kind: ChangeKind
    """Whether the group came, went or changed."""

    before: TransferGroup | None
    """The group on the first side."""

    after: TransferGroup | None
    """The group on the second side."""

    what: tuple[str, ...]
    """What changed, a few words each (``lost cover: hidden -> exposed``)."""

    cost_ms: float | None
    """By how much the step waits longer for it; null where a side does not show it."""

    @property
    def group(self) -> TransferGroup:
        """Return the transfers as they are now, or were."""
        group = self.after or self.before
        assert group is not None
        return group


@dataclass(frozen=True, slots=True)
class Difference:
    """Two snapshots, ``before`` and ``after``, and what differs.

    ``made`` are changes of versions, flags, target and program, a line each. ``lost`` are the transfers that are gone,
    and ``lost_runs`` the number of their executions per step.
    """

    before: Snapshot
    after: Snapshot
    made: tuple[str, ...]
    metrics: tuple[MetricChange, ...]
    transfers: tuple[TransferChange, ...]
    findings: tuple[FindingChange, ...]
    lost: tuple[str, ...]
    lost_runs: int

    @property
    def is_empty(self) -> bool:
        """Return whether nothing that counts differs: no transfer, no finding, no figure."""
        return not (self.transfers or self.findings or any(c.before != c.after for c in self.metrics))


def snapshot_difference(before: Snapshot, after: Snapshot) -> Difference:
    """Return what is different in ``after``."""
    pairs = _matched(before.transfers, after.transfers)
    noise_ms = UNSEEN_SHARE * max(before.step_ms or 0.0, after.step_ms or 0.0)
    changes = [change for had, has in pairs if (change := _change(had, has, noise_ms)) is not None]
    order = (WENT, CAME, CHANGED)
    changes.sort(key=lambda c: (order.index(c.kind), -abs(c.cost_ms or 0.0)))  # a stable sort: pairs are sorted already
    lost = [(had, (had.runs if had else 0) - (has.runs if has else 0)) for had, has in pairs]
    gone = [(had, runs) for had, runs in lost if had is not None and runs > 0]
    return Difference(
        before=before,
        after=after,
        made=tuple(_made(before, after)),
        metrics=tuple(_metrics(before, after)),
        transfers=tuple(changes),
        findings=finding_changes(before.findings, after.findings),
        lost=tuple(f"{tensor_group_text(had)} {place(had)}".rstrip() for had, _ in gone),
        lost_runs=sum(runs for _, runs in gone),
    )


# ---- texts


def tensor_group_text(group: TransferGroup) -> str:
    """Return a text like ``d2h hid bf16[4,4096,16384]``."""
    shape = f"{group.dtype}[{','.join(map(str, group.shape))}]"
    return " ".join(part for part in (group.direction, group.name, shape) if part)


def place(group: TransferGroup | FindingGroup | None) -> str:
    """Return a text like ``train.py:41 in layer``, or ""."""
    if group is None or group.file is None:
        return ""
    function = (group.function or "").rpartition(".")[2]
    inside = f" in {function}" if function and function != "<module>" else ""
    return f"{group.file}:{group.line}{inside}" if group.line else f"{group.file}{inside}"


def counts_text(counts: Mapping[_Word, int]) -> str:
    """Return a text like ``hidden``, or ``3 hidden, 1 exposed``."""
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {word}" for word, count in counts.items())


# ---- matching

_Pair = tuple[TransferGroup | None, TransferGroup | None]
_Keyed = Callable[[TransferGroup], Hashable | None]


def _base(group: TransferGroup) -> str:
    return PurePath(group.file or "").name


def _by_all(g: TransferGroup) -> Hashable:
    return (g.direction, g.dtype, g.shape, g.name, g.loop_depth, _base(g), g.function)


def _without_loop(g: TransferGroup) -> Hashable:
    return (g.direction, g.dtype, g.shape, g.name, _base(g), g.function)


def _without_name(g: TransferGroup) -> Hashable:
    return (g.direction, g.dtype, g.shape, _base(g), g.function)


def _by_tensor(g: TransferGroup) -> Hashable:
    return (g.direction, g.dtype, g.shape)


def _by_name(g: TransferGroup) -> Hashable | None:
    return (g.direction, g.name, _base(g), g.function) if g.name else None


def _by_source(g: TransferGroup) -> Hashable | None:
    return (g.direction, _base(g), g.function, g.loop_depth) if g.file else None


_KEYS: tuple[_Keyed, ...] = (_by_all, _without_loop, _without_name, _by_tensor, _by_name, _by_source)


def _matched(before: Sequence[TransferGroup], after: Sequence[TransferGroup]) -> list[_Pair]:
    """Return pairs of a group of each side, or None where a side has none. Several that fit are taken as one."""
    pairs: list[tuple[list[TransferGroup], list[TransferGroup]]] = []
    left, right = list(before), list(after)
    for key in _KEYS:
        taken: set[Hashable] = set()
        buckets: dict[Hashable, tuple[list[TransferGroup], list[TransferGroup]]] = {}
        for side, groups in ((0, left), (1, right)):
            for group in groups:
                if (found := key(group)) is not None:
                    buckets.setdefault(found, ([], []))[side].append(group)
        for found, (ours, theirs) in buckets.items():
            if ours and theirs and _agree(ours, theirs):
                pairs.append((ours, theirs))
                taken.add(found)
        left, right = ([group for group in groups if key(group) not in taken] for groups in (left, right))
        if key is _without_loop:
            left, right = _attached(pairs, left, 0), _attached(pairs, right, 1)
    whole: list[_Pair] = [(_merged(ours), _merged(theirs)) for ours, theirs in pairs]
    whole += [(group, None) for group in left]
    return whole + [(None, group) for group in right]


def _agree(ours: Sequence[TransferGroup], theirs: Sequence[TransferGroup]) -> bool:
    """Return whether the names of tensors agree, or one side has none."""
    had, has = ({group.name for group in side if group.name} for side in (ours, theirs))
    return not had or not has or bool(had & has)


def _attached(
    pairs: Sequence[tuple[list[TransferGroup], list[TransferGroup]]], groups: list[TransferGroup], side: int
) -> list[TransferGroup]:
    """Add groups that differ from a pair only in their loop to that pair, and return the others."""
    rest = []
    first: dict[Hashable, tuple[list[TransferGroup], list[TransferGroup]]] = {}
    for pair in pairs:
        first.setdefault(_without_loop(pair[side][0]), pair)
    for group in groups:
        if fitting := first.get(_without_loop(group)):
            fitting[side].append(group)
        else:
            rest.append(group)
    return rest


def _merged(groups: Sequence[TransferGroup]) -> TransferGroup:
    if len(groups) == 1:
        return groups[0]
    first = max(groups, key=lambda g: (g.wait_ms or 0.0, g.bytes_per_step))

    def total(attribute: str) -> float | None:
        values = [getattr(group, attribute) for group in groups]
        return None if None in values else float(sum(values))

    return TransferGroup(
        direction=first.direction,
        dtype=first.dtype,
        shape=first.shape,
        name=first.name,
        loop_depth=max(group.loop_depth for group in groups),
        file=first.file,
        function=first.function,
        line=first.line,
        count=sum(group.count for group in groups),
        runs=sum(group.runs for group in groups),
        bytes=max(group.bytes for group in groups),
        bytes_per_step=sum(group.bytes_per_step for group in groups),
        mechanisms=_summed([group.mechanisms for group in groups]),
        verdicts=_summed([group.verdicts for group in groups]),
        duration_ms=total("duration_ms"),
        cover_ms=total("cover_ms"),
        wait_ms=total("wait_ms"),
    )


def _summed(counts: Sequence[Mapping[_Word, int]]) -> dict[_Word, int]:
    words = sorted({word for each in counts for word in each})
    return {word: sum(each.get(word, 0) for each in counts) for word in words}


# ---- what changed of one


def _change(had: TransferGroup | None, has: TransferGroup | None, noise_ms: float) -> TransferChange | None:
    if had is None and has is not None:
        return TransferChange(CAME, None, has, (counts_text(has.verdicts),), has.wait_ms)
    if has is None and had is not None:
        return TransferChange(WENT, had, None, (), None if had.wait_ms is None else -had.wait_ms)
    assert had is not None
    assert has is not None
    what = [
        *_loops(had, has),
        *_sizes(had, has),
        *([f"{counts_text(had.mechanisms)} -> {counts_text(has.mechanisms)}"] if _kinds(had) != _kinds(has) else []),
        *_cover(had, has, noise_ms),
    ]
    cost = None if had.wait_ms is None or has.wait_ms is None else has.wait_ms - had.wait_ms
    return TransferChange(CHANGED, had, has, tuple(what), cost) if what else None


def _kinds(group: TransferGroup) -> set[str]:
    return set(group.mechanisms)


def _loops(had: TransferGroup, has: TransferGroup) -> Sequence[str]:
    if had.runs != has.runs:
        return [f"runs {had.runs} -> {has.runs} times a step"]
    if had.loop_depth != has.loop_depth:
        return ["moved out of a loop" if has.loop_depth < had.loop_depth else "moved into a loop"]
    return []


def _sizes(had: TransferGroup, has: TransferGroup) -> Sequence[str]:
    if (had.dtype, had.shape) != (has.dtype, has.shape):
        shapes = [f"{g.dtype}[{','.join(map(str, g.shape))}]" for g in (had, has)]
        return [f"{'grew' if has.bytes > had.bytes else 'shrank'}: {shapes[0]} -> {shapes[1]}"]
    if had.bytes != has.bytes:
        return [f"{'grew' if has.bytes > had.bytes else 'shrank'}: {had.bytes:,} -> {has.bytes:,} B each"]
    return []


_BETTER = ("hidden", "partial", "exposed", "synchronous")


def _cover(had: TransferGroup, has: TransferGroup, noise_ms: float) -> Sequence[str]:
    """Return the changes of verdicts, and of the wait where that changed by more than noise."""
    found = []
    if set(had.verdicts) != set(has.verdicts):
        known = "unknown" not in had.verdicts and "unknown" not in has.verdicts
        word = "verdict"
        if known:
            word = "lost cover" if _badness(has) > _badness(had) else "gained cover"
        found.append(f"{word}: {counts_text(had.verdicts)} -> {counts_text(has.verdicts)}")
    if had.wait_ms is not None and has.wait_ms is not None and abs(has.wait_ms - had.wait_ms) > noise_ms:
        from hloinspect.units import time_text

        found.append(f"waits {time_text(had.wait_ms)} -> {time_text(has.wait_ms)} a step")
    return found


def _badness(group: TransferGroup) -> float:
    """Return the mean place of its verdicts in the order from good to bad."""
    count = sum(group.verdicts.values())
    return sum(_BETTER.index(word) * number for word, number in group.verdicts.items()) / max(count, 1)


# ---- the rest


def _made(before: Snapshot, after: Snapshot) -> Sequence[str]:
    found = []
    if before.kind != after.kind:
        found.append(f"{before.kind} is compared with {after.kind}")
    if (before.target, before.devices) != (after.target, after.devices):
        sides = [f"{s.devices} x {s.target or 'an unknown target'}" for s in (before, after)]
        found.append(f"target: {sides[0]} -> {sides[1]}")
    had, has = before.made, after.made
    for name in ("jax", "jaxlib", "hloinspect", "topology", "module"):
        old, new = getattr(had, name), getattr(has, name)
        if old != new and old is not None and new is not None:
            found.append(f"{name}: {old} -> {new}")
    if had.flags is not None and has.flags is not None and had.flags != has.flags:
        found.append(f"flags: {list_change(had.flags, has.flags)}")
    if had.configuration is not None and has.configuration is not None:
        same_target = (before.target, before.devices) == (after.target, after.devices)
        entering = ("flags", "topology", "jax", "jaxlib", "hloinspect")
        found += configuration_changes(
            had.configuration,
            has.configuration,
            same_target=same_target,
            hash_decides=same_target and all(getattr(had, name) == getattr(has, name) for name in entering),
        )
    if before.target == after.target and (had.d2h_gbps, had.h2d_gbps) != (has.d2h_gbps, has.h2d_gbps):
        links = [_link(made.d2h_gbps, made.h2d_gbps) for made in (had, has)]
        found.append(f"host link: {links[0]} -> {links[1]}")
    if had.fingerprint and has.fingerprint:
        if had.fingerprint != has.fingerprint:
            found.append("program: other instructions")
        elif had.schedule_hash != has.schedule_hash:
            found.append("program: the same instructions in another order")
    return found


def _link(d2h: float | None, h2d: float | None) -> str:
    return "none" if d2h is None or h2d is None else f"{d2h:g} and {h2d:g} GB/s"


def _metrics(before: Snapshot, after: Snapshot) -> Sequence[MetricChange]:
    had, has = before, after
    rows: list[tuple[str, float | None, float | None, MetricUnit]] = [("step", had.step_ms, has.step_ms, "ms")]
    for name in ("stall", "exposed"):
        old, new = getattr(had, f"{name}_ms"), getattr(has, f"{name}_ms")
        for part in ("total", "d2h", "h2d"):
            metric = name if part == "total" else f"{name}.{part}"
            rows.append((metric, getattr(old, part, None), getattr(new, part, None), "ms"))
    for direction in DIRECTIONS:
        rows.append((f"bytes.{direction}", had.bytes_per_step[direction], has.bytes_per_step[direction], "bytes"))
    rows.append(("memory.device", had.memory.device_bytes, has.memory.device_bytes, "bytes"))
    rows.append(("memory.host", had.memory.host_bytes, has.memory.host_bytes, "bytes"))
    for verdict in sorted({*had.verdicts, *has.verdicts}):
        rows.append((f"count.{verdict}", had.verdicts.get(verdict, 0), has.verdicts.get(verdict, 0), "count"))
    if had.classes_ms and has.classes_ms:
        longest = sorted(
            {*had.classes_ms, *has.classes_ms},
            key=lambda kind: (-max(had.classes_ms.get(kind, 0.0), has.classes_ms.get(kind, 0.0)), kind),
        )
        rows += [
            (f"time of {kind}", had.classes_ms.get(kind, 0.0), has.classes_ms.get(kind, 0.0), "ms") for kind in longest
        ]
    return [MetricChange(*row) for row in rows]
