"""Measurement of the traces of many hosts: one file each, in processes here or on the workers of a Dask cluster.

Each file gives a ``MeasuredFile`` or a line that says why not. A file that fails does not affect the others. The
results are in the order of the files, whichever was ready first.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from hloinspect.inputs.classify import is_url
from hloinspect.measure.outcome import Outcome, Say, Unread, outcome_of

SMALL_BYTES = 1 << 24
"""The total size up to which files are measured in this process: starting others would take longer."""

_TICK_S = 0.5


def measure_files(
    paths: Sequence[str],
    *,
    hlo: Sequence[str] = (),
    jobs: int | None = None,
    scheduler: str | None = None,
    on_progress: Say | None = None,
) -> tuple[Outcome, ...]:
    """Return the outcome of each of several files (paths or URLs), in their order.

    ``hlo`` are files or dumps with the modules that they do not carry.
    ``jobs`` processes measure a file each. With 1 it is this process. With None there are as many as there are files
    and processors, or this one if the files are small. With ``scheduler``, an address, a Dask cluster measures them.
    Raises HloInspectError where that cannot be reached.
    """
    progress = _Counted(len(paths), on_progress)
    if scheduler is not None:
        from hloinspect.measure.cluster import measure_on_cluster

        found = measure_on_cluster(paths, scheduler, progress.tick, hlo=hlo)
    elif (count := _processes(paths, jobs)) == 1:
        found = ((number, outcome_of(path, hlo)) for number, path in enumerate(paths))
    else:
        found = _Pool(count, hlo).run(paths, progress.tick)
    outcomes: dict[int, Outcome] = {}
    modules: dict[bytes, bytes] = {}
    for number, outcome in found:
        outcomes[number] = _sharing(outcome, modules)
        progress.tick(len(outcomes))
    return tuple(outcomes[number] for number in range(len(paths)))


def _processes(paths: Sequence[str], jobs: int | None) -> int:
    """Return the number of processes that measure: never more than files."""
    if jobs is not None:
        return max(1, min(jobs, len(paths)))
    if len(paths) < 2 or (not any(map(is_url, paths)) and _size(paths) <= SMALL_BYTES):
        return 1
    return min(len(paths), len(os.sched_getaffinity(0)))


def _size(paths: Sequence[str]) -> int:
    return sum(Path(path).stat().st_size for path in paths if Path(path).is_file())


def _sharing(outcome: Outcome, modules: dict[bytes, bytes]) -> Outcome:
    """Return an outcome that shares its module with those of other hosts: all hosts run one program, kept once."""
    if isinstance(outcome, Unread) or outcome.module is None:
        return outcome
    return replace(outcome, module=modules.setdefault(outcome.module, outcome.module))


class _Counted:
    """A count of finished files that is shown to the user."""

    def __init__(self, total: int, on_progress: Say | None) -> None:
        self._total = total
        self._done = 0
        self._report = on_progress

    def tick(self, done: int | None = None) -> None:
        """Show the count, again or with a new number."""
        self._done = self._done if done is None else done
        if self._report is not None:
            filled = 20 * self._done // self._total
            self._report(f"[{'#' * filled}{'-' * (20 - filled)}] {self._done} of {self._total} traces")


# ---- processes of this machine


class _Pool:
    """Workers of one process each, with one file at a time, so that the file on which a worker died is known.

    (A pool of several is broken as a whole when one of its processes is killed, and does not name it.)
    """

    def __init__(self, workers: int, hlo: Sequence[str] = ()) -> None:
        self._hlo = tuple(hlo)
        self._workers: list[ProcessPoolExecutor | None] = [None] * workers
        self._context = multiprocessing.get_context("spawn")  # the caller may have threads, jax's among them

    def run(self, paths: Sequence[str], tick: Callable[[], None]) -> Iterator[tuple[int, Outcome]]:
        """Yield the number and outcome of each file, in the order in which they are ready."""
        waiting = list(enumerate(paths))[::-1]
        running: dict[Future[Outcome], tuple[int, int]] = {}
        try:
            for worker in range(len(self._workers)):
                self._submit(worker, waiting, running)
            while running:
                ready, _ = wait(running, timeout=_TICK_S, return_when=FIRST_COMPLETED)
                tick()
                for future in ready:
                    worker, number = running.pop(future)
                    outcome = self._outcome(worker, future, paths[number])
                    self._submit(worker, waiting, running)
                    yield number, outcome
        finally:
            for executor in self._workers:
                if executor is not None:
                    executor.shutdown(wait=not running, cancel_futures=True)

    def _submit(
        self, worker: int, waiting: list[tuple[int, str]], running: dict[Future[Outcome], tuple[int, int]]
    ) -> None:
        if not waiting:
            return
        number, path = waiting.pop()
        try:
            future = self._executor(worker).submit(outcome_of, path, self._hlo)
        except BrokenProcessPool:  # it died while idle
            self._workers[worker] = None
            future = self._executor(worker).submit(outcome_of, path, self._hlo)
        running[future] = (worker, number)

    def _executor(self, worker: int) -> ProcessPoolExecutor:
        executor = self._workers[worker]
        if executor is None:
            executor = ProcessPoolExecutor(1, self._context, initializer=_begin_worker)
            self._workers[worker] = executor
        return executor

    def _outcome(self, worker: int, future: Future[Outcome], path: str) -> Outcome:
        try:
            return future.result()
        except BrokenProcessPool:
            executor = self._workers[worker]
            self._workers[worker] = None
            if executor is not None:
                executor.shutdown(wait=False)
            return Unread(path, f"{path}: the process that measured it was killed (out of memory? try fewer --jobs)")


def _begin_worker() -> None:
    """Make an interrupt end a worker at once and without words: the process that started it says what happened."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
