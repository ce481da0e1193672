"""Compile pieces of work on a Dask cluster (the extra ``cluster``): a task each, on workers that have jax and the
user's files under the same names.

A worker sends back what compiling wrote, so that everything else is done here as for a local plan. Dask starts a task
again elsewhere when its worker dies, and gives it up when that has happened too often: then its points are rows with
that error.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hloinspect._version import __version__
from hloinspect.compile.many import Compiled
from hloinspect.errors import HloInspectError
from hloinspect.inputs.manifest import load_result
from hloinspect.measure.cluster import NO_WORKERS_S, as_ready, client_of
from hloinspect.plan.run import Outcome, compile_work
from hloinspect.plan.work import Work


@dataclass(frozen=True, slots=True)
class Sent:
    """One cell as a worker sends it: the files of its result by name, or the error."""

    number: int
    files: dict[str, bytes]
    error: str
    names: tuple[str, ...]
    policy: tuple[tuple[str, ...], tuple[str, ...]] | None


def run_on_cluster(
    works: Sequence[Work],
    folder: Path,
    scheduler: str,
    cache: bool,
    stop: threading.Event,
    no_workers_s: float = NO_WORKERS_S,
) -> Iterator[Outcome]:
    """Yield every cell as soon as its piece of work is done; ``folder`` gets a directory for each. Raises
    HloInspectError where the extra is missing, the scheduler cannot be reached, or it has no workers for a minute."""
    with client_of(scheduler) as client:
        every = [client.submit(_task, work, __version__, cache, pure=False) for work in works]
        futures = {future: number for number, future in enumerate(every)}
        del every
        for future in as_ready(client, futures, scheduler, lambda: None, no_workers_s):
            work = works[futures.pop(future)]
            if stop.is_set():
                return
            yield from _received(future, work, folder)


def _task(work: Work, version: str, with_cache: bool) -> list[Sent]:
    """Compile a piece of work on a worker."""
    from hloinspect.compile.cache import cache_folder

    if version != __version__:
        error = f"the worker has hloinspect {__version__}, and not {version} as here"
        return [Sent(number, {}, error, (), None) for number in range(len(work.cells))]
    cells = {cell.number: number for number, cell in enumerate(work.cells)}
    with tempfile.TemporaryDirectory(prefix="hloinspect-") as scratch:
        cache = cache_folder() if with_cache else None
        outcomes = compile_work(work, Path(scratch), cache, threading.Event())
        return [_sent(outcome, cells[outcome.cell.number]) for outcome in outcomes]


def _sent(outcome: Outcome, number: int) -> Sent:
    compiled = outcome.compiled
    files = {}
    if compiled.result is not None:
        files = {path.name: path.read_bytes() for path in compiled.result.directory.iterdir() if path.is_file()}
    return Sent(number, files, compiled.error, compiled.names, compiled.policy)


def _received(future: object, work: Work, folder: Path) -> Iterator[Outcome]:
    try:
        answers: list[Sent] = future.result()  # type: ignore[attr-defined]
    except Exception as error:
        words = _why(error)
        for number, cell in enumerate(work.cells):
            yield Outcome(work, cell, Compiled(number, None, words))
        return
    finally:
        future.release()  # type: ignore[attr-defined]
    for sent in answers:
        cell = work.cells[sent.number]
        compiled = Compiled(sent.number, None, sent.error, sent.names, sent.policy)
        if sent.files:
            out = folder / f"point{cell.number}"
            out.mkdir(parents=True, exist_ok=True)
            for name, data in sent.files.items():
                (out / Path(name).name).write_bytes(data)
            try:
                compiled = Compiled(sent.number, load_result(out), "", sent.names, sent.policy)
            except HloInspectError as error:
                compiled = Compiled(sent.number, None, str(error), sent.names)
        yield Outcome(work, cell, compiled)


def _why(error: Exception) -> str:
    kind = type(error).__name__
    if kind == "KilledWorker":
        return "the workers that compiled it died (is there enough memory?)"
    if isinstance(error, ImportError):
        return f"the worker cannot import hloinspect {__version__}: install it there too"
    reason = (str(error).strip() or "no reason given").splitlines()[0]
    return f"the cluster failed on it: {kind}: {reason}"
