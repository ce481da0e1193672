"""Recording of what each simulated stream did when: a timeline in segments, one for the steady iteration of a loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hloinspect.timeline.timeline import Fold, Interval, IntervalKind, Mark, Role, Segment, Stream


@dataclass(slots=True)
class Piece:
    """An interval of one stream, in picoseconds. It may still run after the end of its segment.

    ``run`` distinguishes the executions of one transfer. ``resumed`` says that it began in the segment before.
    """

    start_ps: float
    end_ps: float
    kind: IntervalKind
    stream: Stream
    transfer: int
    name: str
    run: int = 0
    resumed: bool = False


_Key = tuple[str, str, int, str, int]


class Recorder:
    """A collector of pieces that cuts them where segments end. Switched off, it keeps nothing."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._begun_ps = 0.0
        self._pieces: list[Piece] = []
        self._latest: dict[_Key, Piece] = {}
        self._cut: frozenset[_Key] = frozenset()  # what was unfinished when the segment began
        self._marks: list[Mark] = []
        self.segments: list[Segment] = []
        self.folds: list[Fold] = []

    def add(self, piece: Piece) -> None:
        """Record a piece."""
        if self._on and piece.end_ps > piece.start_ps:
            self._pieces.append(piece)

    def go_on(self, piece: Piece) -> None:
        """Record a piece, as part of the one before if it continues that. An empty one is not recorded."""
        if not self._on or piece.end_ps <= piece.start_ps:
            return  # it would take up the piece that continues it, and is not recorded itself
        key = (piece.stream, piece.kind, piece.transfer, piece.name, piece.run)
        latest = self._latest.get(key)
        if latest is not None and latest.end_ps == piece.start_ps:
            latest.end_ps = piece.end_ps
        else:
            piece.resumed = piece.start_ps == self._begun_ps and key in self._cut
            self._latest[key] = piece
            self.add(piece)

    def mark(self, start_ps: float, end_ps: float, transfer: int, role: Role) -> None:
        """Note that the main stream reached the start of a transfer or its wait."""
        if self._on:
            self._marks.append(Mark(round(start_ps), round(end_ps), transfer, role))

    def close(self, end_ps: float) -> None:
        """End the open segment. Pieces that still run are cut, and continue in the next one."""
        rest: list[Piece] = []
        intervals: list[Interval] = []
        for piece in self._pieces:
            if piece.start_ps < end_ps:
                intervals.append(_interval(piece, min(piece.end_ps, end_ps)))
            if piece.end_ps > end_ps:
                begun = piece.resumed or piece.start_ps < end_ps
                rest.append(replace(piece, start_ps=max(piece.start_ps, end_ps), resumed=begun))
        self._pieces = rest
        if end_ps > self._begun_ps:
            self._cut = frozenset(key for key, piece in self._latest.items() if piece.end_ps == end_ps)
        if end_ps > self._begun_ps or self._marks:  # a wait for a finished copy takes no time
            begin, end = round(self._begun_ps), round(end_ps)
            self.segments.append(Segment(1, begin, end, tuple(intervals), tuple(self._marks)))
            self._marks.clear()
        self._latest.clear()
        self._begun_ps = end_ps

    def iterations(self, fold: Fold) -> None:
        """Note that the segments of a fold are iterations of its loop."""
        if self._on and fold.end > fold.first:
            self.folds.append(fold)

    def repeat(self, first_segment: int, more: int, shift_ps: float) -> None:
        """Repeat the segments from ``first_segment`` on ``more`` times. What comes next is later by ``shift_ps``."""
        for index in range(first_segment, len(self.segments)):
            segment = self.segments[index]
            self.segments[index] = replace(segment, repeat=segment.repeat * (1 + more))
        self._begun_ps += shift_ps
        self._pieces = [
            replace(piece, start_ps=piece.start_ps + shift_ps, end_ps=piece.end_ps + shift_ps) for piece in self._pieces
        ]


def _interval(piece: Piece, end_ps: float) -> Interval:
    begin, end = round(piece.start_ps), round(end_ps)
    return Interval(begin, end, piece.kind, piece.stream, piece.transfer, piece.name, piece.resumed)
