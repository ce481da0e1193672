"""Measurement of traces on a Dask cluster (the extra ``cluster``): one task a file, on workers that see the files.

When a worker dies, Dask starts its task again elsewhere. After too many attempts (its setting
``distributed.scheduler.allowed-failures``) it gives the task up: the file is then named like a damaged one.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hloinspect._version import __version__
from hloinspect.errors import HloInspectError, InputError, UsageError
from hloinspect.inputs.classify import is_url
from hloinspect.measure.outcome import Outcome, Unread, outcome_of

INSTALL = 'pip install "hloinspect[cluster]"'
CONNECT_S = 10.0
NO_WORKERS_S = 60.0
"""The seconds for which a cluster may have no worker before the work is given up."""

_TICK_S = 0.2


def measure_on_cluster(
    paths: Sequence[str],
    scheduler: str,
    tick: Callable[[], None],
    no_workers_s: float = NO_WORKERS_S,
    hlo: Sequence[str] = (),
) -> Iterator[tuple[int, Outcome]]:
    """Yield the number and outcome of each file, in the order in which they are ready.

    Workers open the paths as they are (made absolute), so a file, also one of ``hlo``, must have the same name for all
    of them. Raises HloInspectError where the extra is not installed, the scheduler cannot be reached or goes away, or
    it has no workers for a minute.
    """
    with client_of(scheduler) as client:
        modules = tuple(_absolute(path) for path in hlo)
        every = [client.submit(_task, _absolute(path), __version__, modules, pure=False) for path in paths]
        futures = {future: number for number, future in enumerate(every)}
        del every  # a result is freed with its future
        for future in as_ready(client, futures, scheduler, tick, no_workers_s):
            number = futures.pop(future)
            yield number, _result(future, paths[number])


def _task(path: str, version: str, hlo: Sequence[str] = ()) -> Outcome:
    """Measure a file on a worker."""
    if version != __version__:
        return Unread(path, f"{path}: the worker has hloinspect {__version__}, and not {version} as here")
    return outcome_of(path, hlo)


def _absolute(path: str) -> str:
    return path if is_url(path) else str(Path(path).absolute())


def as_ready(
    client: Any, futures: dict[Any, int], scheduler: str, tick: Callable[[], None], no_workers_s: float
) -> Iterator[Any]:
    """Yield the futures as they end, until there are no more."""
    alone_since: float | None = None
    while futures:
        ended = [future for future in futures if future.done()]
        if client.status != "running" or any(future.cancelled() for future in ended):
            raise InputError(f"{scheduler}: the connection to the Dask scheduler was lost")
        yield from ended
        if ended:
            continue
        time.sleep(_TICK_S)
        tick()
        if client.nthreads():
            alone_since = None
            continue
        alone_since = alone_since or time.monotonic()
        if time.monotonic() - alone_since > no_workers_s:
            raise InputError(f"{scheduler}: the Dask cluster has had no workers for {no_workers_s:.0f} s")


def _result(future: Any, path: str) -> Outcome:
    try:
        outcome: Outcome = future.result()
    except HloInspectError as error:
        return Unread(path, str(error))
    except Exception as error:
        kind = type(error).__name__
        if kind == "KilledWorker":
            return Unread(path, f"{path}: the workers that measured it died (is there enough memory?)")
        if isinstance(error, ImportError):
            return Unread(path, f"{path}: the worker cannot import hloinspect {__version__}: install it there too")
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        return Unread(path, f"{path}: the cluster failed on it: {kind}: {reason}")
    finally:
        future.release()
    return outcome


@contextmanager
def client_of(scheduler: str) -> Iterator[Any]:
    """Yield a connection to the scheduler, which is left running.

    Dask's own log is silent: all that a user needs is said here.
    """
    try:
        distributed = importlib.import_module("distributed")
    except ImportError:
        raise UsageError(f"--scheduler needs Dask: {INSTALL}") from None
    log = logging.getLogger("distributed")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        try:
            client = distributed.Client(scheduler, timeout=CONNECT_S, set_as_default=False)
        except Exception as error:  # OSError, TimeoutError, and ValueError for a text that is no address
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{scheduler}: no Dask scheduler can be reached there: {reason}") from None
        try:
            yield client
        finally:
            client.close(timeout=2)
    finally:
        log.setLevel(level)
