"""Compilations that are kept: the same StableHLO with the same options, libraries and target is compiled once.

An entry is a directory of ``inputs/manifest.py`` whose name is a hash of all that decides its content; the StableHLO is
hashed with its locations, so that lines of the user's code that moved make another entry. Entries appear whole or not
at all, the one that was not used for the longest goes first when the folder grows too large, and one that is not whole
is not used. Neither jax nor numpy is imported here: the child and the command share it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hloinspect.errors import InputError, UsageError
from hloinspect.inputs.manifest import MANIFEST, CompileResult, Versions, load_result
from hloinspect.options import cache_folder

if TYPE_CHECKING:
    from hloinspect.compile.protocol import Compilation, ProductionRun

__all__ = ["cache_folder", "clear", "copy_to", "entries", "find", "key_of", "limit_bytes", "store"]

LIMIT_BYTES = 1 << 30
"""Bytes that the folder may hold unless HLOINSPECT_CACHE_BYTES says otherwise."""

_MOST_DIGITS = 18
_PREFIX = "step-"


def key_of(
    stablehlo: str,
    compilation: Compilation,
    versions: Versions,
    configuration: Mapping[str, object],
) -> str:
    """Return the name of an entry: 40 hexadecimal digits of a hash. ``configuration`` is what decides a compilation
    beside the program and the request (compile/child/configuration.py)."""
    decides = {
        "target": compilation.target,
        "platform": compilation.platform,
        "target_config": compilation.target_config,
        "devices": compilation.devices,
        "topology": compilation.topology,
        "xla_flags": compilation.xla_flags,
        "compiler_options": compilation.compiler_options,
        "versions": dict(versions),
        "configuration": dict(configuration),
        "production": _contents(compilation.production),
        "code": _own_code(),
    }
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode())
    digest.update(stablehlo.encode("utf-8", "replace"))
    return digest.hexdigest()[:40]


def _contents(production: ProductionRun | None) -> list[object]:
    """Return what was given of a production run: the content of its files, and their names, which the manifest repeats.
    Its flags are among the compilation's."""
    if production is None:
        return []
    return [
        [production.flags_from, production.left_out],
        *([file.path, file.sha256] if file else None for file in (production.autotune_results, production.pgle)),
    ]


@functools.cache
def _own_code() -> str:
    """Return a hash of this package: it decides how kernels are lowered and what the compiler is given."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        with contextlib.suppress(OSError):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def find(folder: Path, key: str) -> CompileResult | None:
    """Return the entry, marked as used now; None where there is none that is whole."""
    entry = folder / f"{_PREFIX}{key}"
    try:
        result = load_result(entry)
        os.utime(entry)
    except (InputError, OSError):
        return None
    return result


def copy_to(result: CompileResult, out: Path) -> None:
    """Copy all files of an entry but its manifest, which says for which step it was compiled."""
    for path in result.directory.iterdir():
        if path.name != MANIFEST:
            shutil.copyfile(path, out / path.name)


def store(folder: Path, key: str, made: Path) -> None:
    """Keep the files of ``made``. What cannot be kept (a full or a read-only disk) is not kept: that is no error."""
    if find(folder, key) is not None:  # another process was quicker, and somebody may be reading it
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        try:
            for path in made.iterdir():
                shutil.copyfile(path, scratch / path.name)
            entry = folder / f"{_PREFIX}{key}"
            if entry.exists():  # not whole, else it would have been found
                shutil.rmtree(entry, ignore_errors=True)
            scratch.rename(entry)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        _shrink(folder, limit_bytes())


def limit_bytes() -> int:
    """Return how much the folder may hold. Raises UsageError for a limit that is no number."""
    text = os.environ.get("HLOINSPECT_CACHE_BYTES", "")
    if not text:
        return LIMIT_BYTES
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise UsageError(f"HLOINSPECT_CACHE_BYTES={text[:40]} is no number of bytes")
    return int(text)


def entries(folder: Path) -> list[tuple[Path, int]]:
    """Return the entries with their bytes, the one that was not used for the longest first."""
    found: list[tuple[float, Path, int]] = []
    for entry in _ours(folder):
        with contextlib.suppress(OSError):  # another process may take it away
            size = sum(path.stat().st_size for path in entry.iterdir())
            found.append((entry.stat().st_mtime, entry, size))
    return [(entry, size) for _, entry, size in sorted(found)]


def clear(folder: Path) -> tuple[int, int]:
    """Remove all entries, and nothing else that may lie in the folder; returns how many and their bytes."""
    found = entries(folder)
    for entry, _ in found:
        shutil.rmtree(entry, ignore_errors=True)
    for scratch in folder.glob(".new-*"):
        shutil.rmtree(scratch, ignore_errors=True)
    return len(found), sum(size for _, size in found)


def _ours(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.glob(f"{_PREFIX}*") if entry.is_dir() and not entry.is_symlink())


def _shrink(folder: Path, limit: int) -> None:
    found = entries(folder)
    total = sum(size for _, size in found)
    for entry, size in found:
        if total <= limit:
            return
        shutil.rmtree(entry, ignore_errors=True)
        total -= size
