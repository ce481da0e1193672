"""The installed libraries that XLA's compiler is in: which they are, and whether they belong together (child only)."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hloinspect.compile.versions import release_of
from hloinspect.inputs import manifest

_COMPILERS = {
    "gpu": {
        "jax-cuda13-pjrt": ("jax_plugins.xla_cuda13", "xla_cuda_plugin.so"),
        "jax-cuda12-pjrt": ("jax_plugins.xla_cuda12", "xla_cuda_plugin.so"),
    },
    "tpu": {"libtpu": ("libtpu", "libtpu.so")},
}
"""The package that brings XLA's compiler for a platform, the Python module that its library lies in, and the file."""
_BESIDE = {"gpu": ("jaxlib", "jax_cuda13_plugin", "jax_cuda12_plugin"), "tpu": ("jaxlib",)}
"""Modules with libraries that lower a program, or hand it to the compiler."""
_OF_JAXLIBS_RELEASE = ("jax-cuda13-plugin", "jax-cuda13-pjrt", "jax-cuda12-plugin", "jax-cuda12-pjrt")
_LIBRARY_PATH = "TPU_LIBRARY_PATH"
_DIGITS = 12


def compilers(platform: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the version and the content of each library that compiles for ``platform``, by the name of its package:
    ``0.12.0.1 b6de513893c0``. The content is a hash, the same on every machine."""
    found = {}
    for package, (module, name) in _COMPILERS[platform].items():
        for file in _libraries_of(module):
            if file.name == name:
                found[package] = f"{_version(package)} {_sha256(file, _distribution(package))[:_DIGITS]}"
    if platform == "tpu" and (other := _other_libtpu(environ)):
        found["libtpu"] = f"{_LIBRARY_PATH} {_sha256(other, None)[:_DIGITS]}"
    return found


def states(platform: str, environ: Mapping[str, str] = os.environ) -> list[list[object]]:
    """Return path, size and times of every library that takes part: another file has others."""
    modules = [*_BESIDE[platform], *(module for module, _ in _COMPILERS[platform].values())]
    files = [file for module in modules for file in _libraries_of(module)]
    return [state_of(file) for file in [*files, *filter(None, [_other_libtpu(environ)])]]


def state_of(file: Path) -> list[object]:
    """Return path, size and times of a file; the path alone where there is none."""
    try:
        found = file.stat()
    except OSError:
        return [str(file)]
    return [str(file), found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def other_releases(platform: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a note for each library that is not of the release that JAX goes with.

    JAX itself requires the plugin of jaxlib's own release (jaxlib/plugin_support.py), and names the libtpu that it goes
    with in its metadata; it loads the compiler of any other all the same.
    """
    if platform == "gpu":
        return _of_other_releases_than_jaxlib()
    wanted, version = _wanted_libtpu(), _version("libtpu")
    notes = []
    if wanted and version and release_of(version, len(wanted)) != wanted:
        numbers = ".".join(map(str, wanted))
        notes.append(
            f"libtpu {version} is {manifest.NOTE_OTHER_RELEASE} {_version('jaxlib')}, which goes with libtpu "
            f"{numbers}: install one that belongs to it with: pip install 'jax[tpu]'"
        )
    if other := _other_libtpu(environ):
        notes.append(f"{_LIBRARY_PATH}={other} is used in place of libtpu {version}: {manifest.NOTE_UNKNOWN_RELEASE}")
    return notes


def _of_other_releases_than_jaxlib() -> list[str]:
    jaxlib = _version("jaxlib")
    packages: dict[str, list[str]] = {}
    for package in _OF_JAXLIBS_RELEASE:
        version = _version(package)
        if version and jaxlib and release_of(version) != release_of(jaxlib):
            packages.setdefault(version, []).append(package)
    return [
        f"{' and '.join(names)} {version} {'are' if len(names) > 1 else 'is'} {manifest.NOTE_OTHER_RELEASE} {jaxlib}: "
        "install one release of all"
        for version, names in packages.items()
    ]


def _wanted_libtpu() -> tuple[int, ...]:
    """Return the first numbers of the versions of libtpu that the installed jax goes with: 0, 0, 50 of
    ``libtpu==0.0.50.*``. Empty where its metadata does not say."""
    with suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("jax") or ():
            if found := re.match(r"libtpu\s*==\s*(\d+(?:\.\d+)*)", line):
                return release_of(found[1])
    return ()


def _other_libtpu(environ: Mapping[str, str]) -> Path | None:
    """Return the library that TPU_LIBRARY_PATH puts in place of the package's own; the package sets it to its own."""
    path = Path(environ.get(_LIBRARY_PATH) or "")
    if not path.is_file() or any(path.resolve() == own.resolve() for own in _libraries_of("libtpu")):
        return None
    return path


def _libraries_of(module: str) -> Iterator[Path]:
    """Yield the shared libraries in a module's folders, in order of name."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(folder).glob("*.so"))


def _sha256(file: Path, distribution: importlib.metadata.Distribution | None) -> str:
    """Return the hash of a file: as its package's RECORD has it where the file has not changed since. Hashing a library
    of 630 MB takes most of a second."""
    for entry in (distribution.files or ()) if distribution else ():
        if entry.name == file.name and entry.hash and entry.hash.mode == "sha256" and _is_as_recorded(entry, file):
            return base64.urlsafe_b64decode(entry.hash.value + "==").hex()
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_as_recorded(entry: importlib.metadata.PackagePath, file: Path) -> bool:
    assert entry.dist is not None
    record = next((Path(str(e.locate())) for e in entry.dist.files or () if e.name == "RECORD"), None)
    if record is None or not record.is_file() or Path(str(entry.locate())).resolve() != file.resolve():
        return False
    found = file.stat()
    return found.st_size == entry.size and found.st_mtime_ns <= record.stat().st_mtime_ns


def _distribution(package: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version(package: str) -> str | None:
    found = _distribution(package)
    return found.version if found else None
