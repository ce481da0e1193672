"""A folded timeline written out iteration by iteration: the intervals in the order in which they run in the step.

A predicted timeline holds a loop's steady iteration once. Here the iterations follow each other in real time. Where
that would give too many intervals, loops stay folded: one iteration of such a loop is written out, and has ``times``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hloinspect.timeline.timeline import Fold, Interval, IntervalKind, Mark, Stream, Timeline

LIMIT = 200_000
"""Most intervals of a step that is written out. In a longer step loops stay folded, those first that save the most."""


@dataclass(slots=True, eq=False)
class Window:
    """An interval in the step's time.

    ``iterations`` has the iteration of each loop around it, the outermost loop first, counted from 1. ``times`` is 1,
    or how often the interval runs because loops around it stay folded.
    """

    start_ps: int
    end_ps: int
    kind: IntervalKind
    stream: Stream
    transfer: int
    name: str
    iterations: tuple[int, ...]
    times: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """The iterations ``first`` to ``last`` of a loop of ``of`` iterations: more than one where the loop stays folded.

    Of a folded loop only the first of them is written out, until ``shown_ps``. The others take the time until
    ``end_ps``. ``depth`` counts the loops around this one. ``times`` is as in ``Window``, for the loops around this
    one.
    """

    start_ps: int
    shown_ps: int
    end_ps: int
    name: str
    first: int
    last: int
    of: int
    depth: int
    times: int


@dataclass(slots=True, eq=False)
class _Node:
    """A fold, or the whole step. The children are numbers of segments, and nodes."""

    iterations: int = 1
    fold: Fold | None = None
    children: list[int | _Node] = field(default_factory=list)
    is_open: bool = True

    @property
    def shown(self) -> int:
        return self.iterations if self.is_open else 1


@dataclass(frozen=True, slots=True)
class _Place:
    """The loops around a segment, in the form in which ``Window`` has them."""

    iterations: tuple[int, ...] = ()
    times: int = 1


class Layout:
    """A timeline written out in real time, in at most ``limit`` intervals and iterations if folding loops can achieve
    that.

    Its iterators yield in order of start, and keep only what has not ended yet. Two copies of one direction may share
    the link; if a transfer runs twice at the same time, the parts of its two intervals may be exchanged.

    Raises ValueError if the timeline's folds overlap, or contradict the ``repeat`` of its segments.
    """

    def __init__(self, timeline: Timeline, limit: int = LIMIT) -> None:
        self._segments = timeline.segments
        self._root = _tree(timeline)
        self._fold(limit)
        self._lengths: dict[_Node, int] = {}
        self.start_ps = timeline.segments[0].start_ps if timeline.segments else 0
        self.end_ps = self.start_ps + self._length(self._root)

    @property
    def is_folded(self) -> bool:
        """Return whether a loop stays folded."""
        return any(not node.is_open for node in _nodes(self._root))

    def windows(self) -> Iterator[Window]:
        """Yield every interval.

        An interval that the end of a segment has cut is joined again, except where it crosses the border of a loop that
        stays folded. The sums by kind and transfer, times ``times``, are equal to those of the timeline.
        """
        pending: deque[Window] = deque()
        going_on: dict[tuple[str, str, int, str], Window] = {}
        for begin, number, place in self._walk(self._root, self.start_ps, _Place()):
            segment = self._segments[number]
            if segment.end_ps == segment.start_ps:
                continue
            shift, end = begin - segment.start_ps, begin + segment.end_ps - segment.start_ps
            ended, going_on = going_on, {}
            for interval in sorted(segment.intervals, key=lambda one: one.start_ps):
                key = (interval.stream, interval.kind, interval.transfer, interval.name)
                before = ended.pop(key, None) if interval.resumed else None
                if before is not None and before.end_ps == interval.start_ps + shift and before.times == place.times:
                    before.end_ps = interval.end_ps + shift
                else:
                    before = _window(interval, shift, place)
                    pending.append(before)
                if before.end_ps == end:
                    going_on[key] = before
            kept = set(going_on.values())
            while pending and pending[0] not in kept:
                yield pending.popleft()
        yield from pending

    def segments(self) -> Iterator[tuple[int, int]]:
        """Yield the start of each segment and its number in the timeline, in order of start."""
        for begin, number, _ in self._walk(self._root, self.start_ps, _Place()):
            yield begin, number

    def marks(self) -> Iterator[Mark]:
        """Yield the mark of every start and `done` of a transfer, at its time.

        The n-th `done` of a transfer belongs to its n-th start, unless a loop between them stays folded.
        """
        for begin, number, _ in self._walk(self._root, self.start_ps, _Place()):
            segment = self._segments[number]
            shift = begin - segment.start_ps
            for mark in segment.marks:
                yield Mark(mark.start_ps + shift, mark.end_ps + shift, mark.transfer, mark.role)

    def iterations(self) -> Iterator[Iteration]:
        """Yield every iteration of every loop. An iteration of an outer loop comes before those of the loops inside
        it."""
        return self._iterations(self._root, self.start_ps, 0, 1)

    # The tree of folds.

    def _length(self, node: _Node) -> int:
        """Return the length of all iterations of a node, in picoseconds."""
        if node not in self._lengths:
            self._lengths[node] = node.iterations * sum(map(self._length_of, node.children))
        return self._lengths[node]

    def _length_of(self, child: int | _Node) -> int:
        if isinstance(child, _Node):
            return self._length(child)
        segment = self._segments[child]
        return segment.end_ps - segment.start_ps

    def _size(self, node: _Node) -> int:
        """Return the number of intervals and iterations that a node yields in its present state."""
        inside = sum(
            self._size(child) if isinstance(child, _Node) else len(self._segments[child].intervals)
            for child in node.children
        )
        return node.shown * (inside + (node.fold is not None))

    def _fold(self, limit: int) -> None:
        """Fold as few loops as necessary, of those that save the most."""
        if self._size(self._root) <= limit:
            return
        saved: list[tuple[int, _Node]] = []
        rest = [(self._root, 1)]
        while rest:
            node, times = rest.pop()
            if node.iterations > 1:
                saved.append((times * (node.iterations - 1) * (self._size(node) // node.iterations), node))
            rest += [(child, times * node.iterations) for child in reversed(node.children) if isinstance(child, _Node)]
        order = [node for _, node in sorted(saved, key=lambda item: -item[0])]
        least, most = 0, len(order)
        while least < most:
            middle = (least + most) // 2
            for position, node in enumerate(order):
                node.is_open = position >= middle
            if self._size(self._root) <= limit:
                most = middle
            else:
                least = middle + 1
        for position, node in enumerate(order):
            node.is_open = position >= least

    def _walk(self, node: _Node, begin_ps: int, around: _Place) -> Iterator[tuple[int, int, _Place]]:
        iteration_ps = self._length(node) // node.iterations
        times = around.times * node.iterations // node.shown
        for iteration in range(node.shown):
            place, now = around, begin_ps + iteration * iteration_ps
            if node.fold is not None:
                place = _Place((*around.iterations, node.fold.before + iteration + 1), times)
            for child in node.children:
                if isinstance(child, _Node):
                    yield from self._walk(child, now, place)
                else:
                    yield now, child, place
                now += self._length_of(child)

    def _iterations(self, node: _Node, begin_ps: int, depth: int, times: int) -> Iterator[Iteration]:
        whole = self._length(node)
        iteration_ps = whole // node.iterations
        for iteration in range(node.shown):
            now = begin_ps + iteration * iteration_ps
            if node.fold is not None:
                fold, first = node.fold, node.fold.before + iteration + 1
                last = first if node.is_open else fold.before + node.iterations
                end = now + iteration_ps * (last - first + 1)
                yield Iteration(now, now + iteration_ps, end, fold.name, first, last, fold.of, depth, times)
            for child in node.children:
                if isinstance(child, _Node):
                    inside = depth + (node.fold is not None)
                    yield from self._iterations(child, now, inside, times * node.iterations // node.shown)
                now += self._length_of(child)


def unfold(timeline: Timeline, limit: int = LIMIT) -> Iterator[Window]:
    """Yield the intervals of a timeline, iteration by iteration, in the order and at the times of a step.

    There are at most ``limit`` if folding loops can achieve that. The intervals of a folded loop then have ``times``
    above 1. Raises ValueError if the timeline's folds overlap, or contradict the ``repeat`` of its segments.
    """
    return Layout(timeline, limit).windows()


def _window(interval: Interval, shift_ps: int, place: _Place) -> Window:
    begin, end = interval.start_ps + shift_ps, interval.end_ps + shift_ps
    kind, stream = interval.kind, interval.stream
    return Window(begin, end, kind, stream, interval.transfer, interval.name, place.iterations, place.times)


def _nodes(node: _Node) -> Iterator[_Node]:
    yield node
    for child in node.children:
        if isinstance(child, _Node):
            yield from _nodes(child)


def _tree(timeline: Timeline) -> _Node:
    """Return the folds as a tree. A segment that repeats more often than its folds do becomes a loop of its own."""
    root = _Node()
    outermost_first = sorted(enumerate(timeline.folds), key=lambda item: (item[1].first, -item[1].end, -item[0]))
    folds = deque(fold for _, fold in outermost_first)
    around = [(root, len(timeline.segments), 1)]
    for number, segment in enumerate(timeline.segments):
        while around[-1][1] <= number:
            around.pop()
        while folds and folds[0].first == number:
            fold = folds.popleft()
            node = _Node(fold.iterations, fold)
            parent, end, times = around[-1]
            if not number < fold.end <= end or fold.iterations < 1:
                raise ValueError(f"{fold} does not lie in the loop around it")
            parent.children.append(node)
            around.append((node, fold.end, times * fold.iterations))
        parent, _, times = around[-1]
        more, rest = divmod(segment.repeat, times)
        if rest or not more:
            raise ValueError(f"segment {number} repeats {segment.repeat} times, the loops around it {times} times")
        if more == 1:
            parent.children.append(number)
        else:
            parent.children.append(_Node(more, Fold(number, number + 1, more, 0, more, ""), [number]))
    if folds:
        raise ValueError(f"{folds[0]} has no segments")
    return root
