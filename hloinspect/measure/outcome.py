"""Outcome of one trace file, here or behind a URL: a measurement, or a line that says why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hloinspect.errors import HloInspectError, InputError
from hloinspect.inputs.classify import is_url
from hloinspect.inputs.modules import with_given_modules
from hloinspect.inputs.remote import copied
from hloinspect.measure.file import measure_file, measure_space
from hloinspect.measure.measured import MeasuredFile
from hloinspect.profiles.open import open_trace


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that could not be measured. ``reason`` is one line that names it."""

    path: str
    reason: str


Outcome = MeasuredFile | Unread
Say = Callable[[str], None]


def measure_source(path: str, hlo: Sequence[str] = (), on_progress: Say | None = None) -> MeasuredFile:
    """Return the measurement of a trace that is a file here, or behind a URL. Raises InputError.

    ``hlo`` are files or dumps with the modules that the trace does not carry. Of a URL a copy is read and then removed.
    """
    if not is_url(path):
        return measure_file(path, hlo=hlo, on_progress=on_progress)
    here = Path()
    try:
        with copied(path) as here:
            space = with_given_modules(open_trace(here, on_progress), hlo, look_beside=False)
        return measure_space(replace(space, path=path), on_progress)
    except InputError as error:
        raise InputError(str(error).replace(str(here), path) if here.name else str(error)) from None


def outcome_of(path: str, hlo: Sequence[str] = ()) -> Outcome:
    """Return the measurement, or the failure as a result. This runs in another process, so it raises nothing."""
    try:
        return measure_source(path, hlo)
    except HloInspectError as error:
        return Unread(path, str(error))
    except MemoryError:
        return Unread(path, f"{path}: does not fit into memory")
    except Exception as error:  # this concerns one file: the others still have results
        return Unread(path, f"{path}: internal error: {type(error).__name__}: {' '.join(str(error).split())}")
