"""The kind of an input. No other module guesses it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hloinspect.decoding import read_text
from hloinspect.errors import InputError
from hloinspect.profiles.content import may_be_nsys

STEP: Final = "step"
COMPILED: Final = "compiled"
DUMP: Final = "dump"
MODULE: Final = "module"

_MODULE_STEP = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_FILE_STEP = re.compile(r".+\.py:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_PARTS = ("module.hlo.txt", "module.hlo.pb")
_TRACES = (".xplane.pb", ".xplane.pb.gz", ".trace.json", ".trace.json.gz")
_EXPECTED = (
    "expected HLO text or proto, a directory of `hloinspect compile` or of --xla_dump_to, "
    "or a step such as train.py:step"
)


@dataclass(frozen=True, slots=True)
class Input:
    """An input. ``text`` is what the user wrote.

    ``kind`` is step, compiled (a directory with a manifest, or the module in it), dump (a directory of --xla_dump_to)
    or module (one file, or ``-``).
    """

    text: str
    kind: Literal["step", "compiled", "dump", "module"]
    path: Path


def classify(text: str) -> Input:
    """Return what an INPUT argument is. Raises InputError, which names what was expected, for any other text."""
    path = Path(text)
    if text == "-":
        return Input(text, MODULE, path)
    if not text:  # an empty variable in a script; Path would make the working directory of it
        raise InputError(f"the input's name is empty; {_EXPECTED}")
    try:
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # a name too long, or with a zero byte
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{text[:200]}: cannot be read: {reason}") from None
    if is_trace(text):
        raise InputError(f"{text} is a profiler's trace, not a module: use `hloinspect trace {text}`")
    if is_directory:
        return _directory(text, path)
    if exists:
        if path.suffix == ".py":
            raise InputError(f"{text} is a Python file: name the function that makes the step, such as {text}:step")
        if _is_part_of_result(path):
            return Input(text, COMPILED, path.parent)
        return Input(text, MODULE, path)
    if _FILE_STEP.fullmatch(text) or _MODULE_STEP.fullmatch(text):
        return Input(text, STEP, path)
    raise InputError(f"{text}: no such file; {_EXPECTED}")


def _is_part_of_result(path: Path) -> bool:
    """Return whether a module lies in the directory to which `hloinspect compile` wrote it.

    The manifest there has what the module does not have: what was requested, what XLA assigned, and the versions.
    """
    if path.name not in _PARTS:
        return False
    try:
        manifest = json.loads(read_text(path.parent / "manifest.json"))
        text = path.parent / "module.hlo.txt"
        if not isinstance(manifest, dict) or not text.is_file():
            return False
        with text.open("rb") as file:
            return manifest.get("module_sha256") == hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError, RecursionError):
        return False


def is_trace(text: str) -> bool:
    """Return whether an INPUT argument is a profiler's trace or a profile directory.

    Those of XLA's profiler are known by their names, and those of Nsight Systems by their content. A directory with
    modules may hold profiles too: there it is the modules that are meant.
    """
    path = Path(text)
    try:
        if path.name.endswith(_TRACES) or (path / "plugins" / "profile").is_dir():
            return True
        if not path.is_dir() and not (path.is_file() and may_be_nsys(path)):
            return False
        from hloinspect.profiles.nsys.archive_members import is_nsys_jax
        from hloinspect.profiles.nsys.find import is_nsys

        return is_nsys_jax(path) or (not (path.is_dir() and _has_modules(path)) and is_nsys(path))
    except (OSError, ValueError, InputError):  # a name too long, or with a zero byte; a damaged zip
        return False


def is_url(path: str) -> bool:
    """Return whether an input is a URL, and not a file on this machine."""
    return "://" in path


def _has_modules(path: Path) -> bool:
    from hloinspect.inputs.dumps import dumped_modules

    return (path / "manifest.json").is_file() or bool(dumped_modules(path))


def _directory(text: str, path: Path) -> Input:
    if (path / "manifest.json").is_file():
        return Input(text, COMPILED, path)
    from hloinspect.inputs.dumps import dumped_modules

    if dumped_modules(path):
        return Input(text, DUMP, path)
    raise InputError(
        f"{text} holds neither manifest.json (of `hloinspect compile`) nor *after_optimizations.txt (of --xla_dump_to)"
    )
