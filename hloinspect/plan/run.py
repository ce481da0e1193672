"""Compile pieces of work in child processes side by side, as many as cores and memory allow.

What is compiled goes into the cache of compile/cache.py at once: a plan that was killed finds there what it had, and
compiles the rest.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hloinspect.compile.many import Compiled, Variant, compile_variants
from hloinspect.errors import HloInspectError, UsageError
from hloinspect.plan.work import Cell, Work

FIRST_NEED_BYTES = 3 << 29
"""What a child is taken to need until one has ended: most steps of scanned layers stay under 1.5 GiB."""

NEED_MARGIN = 1.25
"""The largest child so far is taken to be exceeded by so much."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One cell's compilation, or the error of all that was in its piece of work."""

    work: Work
    cell: Cell
    compiled: Compiled


@dataclass
class Room:
    """The number of children that may run: at most ``jobs``, and no more than the memory that was free at the start
    holds."""

    jobs: int
    free_bytes: int | None
    need_bytes: int = FIRST_NEED_BYTES

    def learn(self, peak_rss_bytes: int) -> None:
        """Note what a child needed."""
        self.need_bytes = max(self.need_bytes if self._known else 0, round(peak_rss_bytes * NEED_MARGIN))
        self._known = True

    _known: bool = field(default=False, repr=False)

    @property
    def allowed(self) -> int:
        """Return how many children may run, at least one: a child too many for the memory ends with an error of its
        own."""
        if self.free_bytes is None:
            return self.jobs
        return max(1, min(self.jobs, self.free_bytes // max(1, self.need_bytes)))


def room_for(jobs: int | None) -> Room:
    """Return room for as many children as are requested, else as there are cores and memory for. Raises UsageError."""
    if jobs is not None:
        if jobs < 1:
            raise UsageError(f"--jobs must be at least 1, not {jobs}")
        return Room(jobs, None)
    return Room(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, free_memory()
    )


def free_memory() -> int | None:
    """Return the bytes that processes can have without swapping: MemAvailable of Linux, and what the cgroup leaves;
    None elsewhere."""
    found = []
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(int(text.partition("MemAvailable:")[2].split()[0]) * 1024)
    except (OSError, IndexError, ValueError):
        pass
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        found.append(max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        pass
    return min(found) if found else None


def run(
    works: Sequence[Work],
    folder: Path,
    *,
    room: Room,
    cache: Path | None,
    stop: threading.Event,
    on_progress: Callable[[str], None] | None = None,
) -> Iterator[Outcome]:
    """Yield every cell as soon as it is compiled; ``folder`` gets a directory for each, named by its number.

    Children are ended when the iterator is closed or ``stop`` is set.
    """
    ready: queue.Queue[Outcome | Work] = queue.Queue()
    waiting = list(works)
    running = 0
    try:
        while waiting or running:
            while waiting and running < room.allowed and not stop.is_set():
                work = waiting.pop(0)
                running += 1
                arguments = (work, folder, cache, stop, ready, on_progress)
                threading.Thread(target=_serve, args=arguments, daemon=True).start()
            if not running:
                return
            item = ready.get()
            if isinstance(item, Work):
                running -= 1
                continue
            if item.compiled.result is not None:
                room.learn(item.compiled.result.manifest.peak_rss_bytes)
            yield item
    finally:
        stop.set()


def _serve(
    work: Work,
    folder: Path,
    cache: Path | None,
    stop: threading.Event,
    ready: queue.Queue[Outcome | Work],
    on_progress: Callable[[str], None] | None,
) -> None:
    """Compile a piece of work in a thread, and put the work itself into the queue at the end."""
    try:
        for outcome in compile_work(work, folder, cache, stop, on_progress):
            ready.put(outcome)
    finally:
        ready.put(work)


def compile_work(
    work: Work,
    folder: Path,
    cache: Path | None,
    stop: threading.Event,
    on_progress: Callable[[str], None] | None = None,
) -> Iterator[Outcome]:
    """Yield the cells of one piece of work, one after the other."""
    variants = [Variant(cell.xla_flags, folder / f"point{cell.number}") for cell in work.cells]
    done: set[int] = set()
    error = "it was not compiled"
    try:
        for compiled in compile_variants(
            work.request,
            work.target,
            variants,
            replace(work.compiling, cache=cache),
            stop=stop,
            on_progress=on_progress,
        ):
            done.add(compiled.number)
            yield Outcome(work, work.cells[compiled.number], compiled)
    except HloInspectError as problem:
        error = str(problem)
    if not stop.is_set():
        for number, cell in enumerate(work.cells):
            if number not in done:
                yield Outcome(work, cell, Compiled(number, None, error))


def remaining_text(done: int, total: int, seconds: float) -> str:
    """Return a text such as ``3 of 18 points, about 2 min left``."""
    text = f"{done} of {total} points"
    if not done:
        return text
    left = seconds / done * (total - done)
    return f"{text}, about {math.ceil(left / 60)} min left" if left > 90 else f"{text}, about {left:.0f} s left"
