"""Opening a profile of any known format as one model of events."""

from __future__ import annotations

from pathlib import Path

from hloinspect.profiles.nsys.archive_members import is_nsys_jax
from hloinspect.profiles.xplane import XSpace, open_xspace


def open_trace(path: str | Path) -> XSpace:
    """Return the trace in a file: an XSpace, or a Chrome trace where the name ends in ``.json`` or ``.json.gz``.

    By its content it may be an archive of nsys-jax too, which may be a directory.

    Raises InputError.
    """
    if str(path).endswith((".json", ".json.gz")):
        from hloinspect.profiles.chrome import open_chrome_trace

        return open_chrome_trace(path)
    if is_nsys_jax(path):
        from hloinspect.profiles.nsys.archive import open_nsys_jax

        return open_nsys_jax(path)
    return open_xspace(path)
