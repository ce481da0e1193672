"""Traces behind URLs (``gs://``, ``s3://``, any URL that fsspec knows): listed there, copied here one at a time.

fsspec is imported only when a URL is given. It is in the extra ``remote``, with the file systems of the large clouds.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from hloinspect.errors import InputError
from hloinspect.profiles.xplane.find import EXPECTED, newest_run

INSTALL = 'pip install "hloinspect[remote]"'


def find_remote(url: str) -> tuple[str, ...]:
    """Return the traces of one run as URLs, one for each host. Raises InputError. The rules are those of
    ``find_xplanes``."""
    files, path = _file_system(url)
    with _one_line(url):
        if files.isfile(path):
            return (url,)
        found = newest_run(_Remote(files), path.rstrip("/"))
        if not found and not files.exists(path):
            raise InputError(f"{url}: no such file or directory")
        if not found:
            raise InputError(f"{url}: {EXPECTED}")
        return tuple(str(files.unstrip_protocol(file)) for file in found)


@contextmanager
def copied(url: str) -> Iterator[Path]:
    """Yield a copy of the file in a temporary directory, which is removed at the end. Raises InputError.

    A trace that has been opened can be read after the end: it is mapped, and its space is freed with the map.
    """
    files, path = _file_system(url)
    with tempfile.TemporaryDirectory(prefix="hloinspect-") as folder:
        here = Path(folder) / path.rstrip("/").rpartition("/")[2]
        with _one_line(url):
            files.get_file(path, str(here))
        yield here


def _file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for the URL, and the path in it."""
    scheme = url.partition("://")[0]
    try:
        fsspec = importlib.import_module("fsspec")
        with _one_line(url, (ImportError, ValueError)):
            files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        missing = " ".join(str(error).split())
        raise InputError(f"{url}: reading {scheme}:// needs another package ({missing}): {INSTALL}") from None
    except ValueError as error:
        raise InputError(f"{url}: {scheme}:// cannot be read: {' '.join(str(error).split())}") from None
    return files, str(path)


@contextmanager
def _one_line(url: str, passed: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise any error of a store as one line. Each store has errors of its own, and not all are OSErrors."""
    try:
        yield
    except passed:
        raise
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{url}: no such file or directory") from None
    except Exception as error:
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise InputError(f"{url}: cannot be read: {type(error).__name__}: {reason}") from None


class _Remote:
    """Directories in one of fsspec's file systems."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def entries(self, folder: str) -> Mapping[str, bool] | None:
        try:
            found = self._files.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        names = {str(entry["name"]).rstrip("/"): entry["type"] == "directory" for entry in found}
        # A store may list the directory in itself.
        return {name.rpartition("/")[2]: is_folder for name, is_folder in names.items() if name != folder}

    def written(self, file: str) -> float:
        try:
            when = self._files.modified(file)
        except NotImplementedError:
            return 0.0
        return when.timestamp() if isinstance(when, datetime) else float(when)
