"""Opening a profile of any known format as one model of events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hloinspect.errors import InputError
from hloinspect.profiles.content import CHROME, RAW_SUFFIXES, REPORT, SQLITE, content_of
from hloinspect.profiles.nsys.archive_members import is_nsys_jax
from hloinspect.profiles.xplane import XSpace, open_xspace


def open_trace(path: str | Path, on_progress: Callable[[str], None] | None = None) -> XSpace:
    """Return the trace in a file: an XSpace, a Chrome trace, or what Nsight Systems and nsys-jax write.

    The content says which it is, not the name. SQLite exports and reports of Nsight Systems may be packed (gzip, xz,
    zstd). A report is exported by nsys, which takes a while: ``on_progress`` gets a line then. Raises InputError.
    """
    content = content_of(path)
    if content == CHROME:
        from hloinspect.profiles.chrome import open_chrome_trace

        return open_chrome_trace(path)
    if content == SQLITE:
        from hloinspect.profiles.nsys.packed import open_export

        return open_export(path)
    if content == REPORT:
        from hloinspect.profiles.nsys.report import open_report

        return open_report(path, on_progress)
    if is_nsys_jax(path):
        from hloinspect.profiles.nsys.archive import open_nsys_jax

        return open_nsys_jax(path)
    if str(path).endswith(RAW_SUFFIXES) and Path(path).is_file():
        raise InputError(
            f"{path}: a capture of Nsight Systems that only nsys can read: open it with the nsys that made it, save it "
            "as .nsys-rep, then `nsys export --type sqlite REPORT.nsys-rep`"
        )
    return open_xspace(path)
