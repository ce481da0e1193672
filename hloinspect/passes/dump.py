"""The texts that XLA writes after its passes, in the order in which it wrote them.

``--xla_dump_hlo_pass_re=.*`` writes ``module_0001.jit_f.0057.PIPELINE.after_PASS.before_NEXT.txt``
(xla/service/dump.cc, ``DumpHloModuleBetweenPassesIfEnabled``), and inside a pass
``module_0001.jit_f.0131.PASS.after_STEP.txt`` (``DumpHloModuleDuringPassIfEnabled``). It always writes one at the start
of a pipeline, and one after a pass only if the pass reports a change. The texts before and after all passes are at the
two ends.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hloinspect.errors import InputError
from hloinspect.hlo.load import DEFAULT_MAX_BYTES
from hloinspect.inputs.dumps import DumpedModule, choose_module, dumped_modules

_PASS_TEXT = re.compile(
    r"(?P<key>.+)\.(?P<number>\d{4,9})\.(?P<pipeline>.+?)\.after_(?P<after>.+?)(?:\.before_(?P<next>.+))?\.txt"
)
_BEFORE_ALL = "before_optimizations"
_AFTER_ALL = "after_optimizations"
_PIPELINE_START = "pipeline-start"
_MARKS = (b"S(5)", b"annotate_device_placement", b'custom_call_target="MoveTo', b"HostExecute")
_TAIL_BYTES = 1 << 16
FLAGS = ("xla_dump_hlo_pass_re=.*", "xla_dump_hlo_as_text=true")
"""Flags, with ``xla_dump_to``, that make XLA write these texts."""


@dataclass(frozen=True, slots=True)
class PassText:
    """A text of the module after a pass.

    ``name`` is the pass after which it was written. At the start of a pipeline it is ``pipeline-start``, and at the
    ends of the compilation ``before_optimizations`` and ``after_optimizations``. ``number`` is XLA's, or -1 at the
    ends. ``inside`` means that the pass had not ended yet. ``name`` is then a step of the pass ``pipeline``.
    """

    number: int
    pipeline: str
    name: str
    path: Path
    size_bytes: int
    inside: bool = False

    @property
    def is_start(self) -> bool:
        """Return whether it was written at the start of a pipeline. No pass of the pipeline made its changes."""
        return self.name == _PIPELINE_START

    @property
    def label(self) -> str:
        """Return its name in a table."""
        if self.is_start:
            return f"before the pipeline {self.pipeline}"
        return f"{self.pipeline}: {self.name.replace('_', ' ')}" if self.inside else self.name


@dataclass(frozen=True, slots=True)
class PassDump:
    """The texts of one module.

    ``others`` are the keys of the directory's other modules. ``missing`` is how many numbers have no text. ``inside``
    is how many texts from inside passes are left out.
    """

    directory: Path
    key: str
    texts: tuple[PassText, ...]
    others: tuple[str, ...]
    missing: int
    inside: int

    @property
    def size_bytes(self) -> int:
        """Return the size of all texts in bytes."""
        return sum(text.size_bytes for text in self.texts)


def find_passes(directory: Path, wanted: str | None = None, *, steps: bool = False) -> PassDump:
    """Return the pass texts of one module in a directory.

    It is the module that ``wanted`` names by its key, name or number. Without ``wanted`` it is the one with the most
    text among those that have host memory or placements in their first or last text, or among all. ``steps`` includes
    the texts that passes write before they have ended (copy insertion adds copies and removes most of them again).

    Raises InputError where there are none, where ``wanted`` names none or several, and where the texts are those of
    more than one run.
    """
    try:
        files = sorted(path for path in directory.iterdir() if path.is_file())
    except OSError as error:
        raise InputError(f"{directory}: cannot be read: {error.strerror or error}") from None
    found: dict[str, list[PassText]] = {}
    for path in files:
        if match := _PASS_TEXT.fullmatch(path.name):
            found.setdefault(match["key"], []).append(_text_of(match, path))
    if not found:
        raise InputError(
            f"{directory}: expected texts of compiler passes (NAME.0001.PIPELINE.after_PASS.before_NEXT.txt), found "
            f"none: run with XLA_FLAGS='--xla_dump_to={directory} --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=.*'"
        )
    ends = {path.name: path for path in files}
    final = {module.key: module.module for module in dumped_modules(directory) if module.module.suffix == ".txt"}
    whole = {key: _with_ends(key, sorted(texts, key=lambda t: t.number), ends, final) for key, texts in found.items()}
    key = _chosen(directory, whole, wanted)
    numbers = [text.number for text in whole[key] if text.number >= 0]
    for one, other in itertools.pairwise(numbers):
        if one == other:
            raise InputError(
                f"{directory}: two texts of {key} have the number {one:04}: expected those of one run "
                "(dump into an empty directory)"
            )
    missing = numbers[-1] - numbers[0] + 1 - len(numbers)
    texts = tuple(text for text in whole[key] if steps or not text.inside) or whole[key]
    return PassDump(directory, key, texts, tuple(sorted(set(whole) - {key})), missing, len(whole[key]) - len(texts))


def _text_of(match: re.Match[str], path: Path) -> PassText:
    inside = match["next"] is None
    return PassText(int(match["number"]), match["pipeline"], match["after"], path, path.stat().st_size, inside)


def _with_ends(key: str, texts: list[PassText], files: dict[str, Path], final: dict[str, Path]) -> tuple[PassText, ...]:
    first, last = files.get(f"{key}.{_BEFORE_ALL}.txt"), final.get(key)
    front = [PassText(-1, "", _BEFORE_ALL, first, first.stat().st_size)] if first else []
    end = [PassText(-1, "", _AFTER_ALL, last, last.stat().st_size)] if last else []
    return (*front, *texts, *end)


def _chosen(directory: Path, modules: dict[str, tuple[PassText, ...]], wanted: str | None) -> str:
    sizes = {key: sum(text.size_bytes for text in texts) for key, texts in modules.items()}
    if wanted is not None:
        known = [
            DumpedModule(key, texts[-1].path, None, None, None, None, None, sizes[key])
            for key, texts in sorted(modules.items())
        ]
        return choose_module(directory, known, wanted).key
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if any(_has_marks(text.path) for text in (modules[key][0], modules[key][-1])):
            return key
    return max(sizes, key=lambda key: sizes[key])


def _has_marks(path: Path) -> bool:
    try:
        raw = path.read_bytes() if path.stat().st_size <= DEFAULT_MAX_BYTES else b""
    except OSError:
        return False
    return any(mark in raw for mark in _MARKS)


def read_text(text: PassText) -> bytes:
    """Return the bytes of a text. Raises InputError where it cannot be read, is too large, or is no complete HLO
    text."""
    if text.size_bytes > DEFAULT_MAX_BYTES:
        raise InputError(f"{text.path}: expected at most {DEFAULT_MAX_BYTES:,} bytes, found {text.size_bytes:,}")
    try:
        raw = text.path.read_bytes()
    except OSError as error:
        raise InputError(f"{text.path}: cannot be read: {error.strerror or error}") from None
    if not raw[:4096].lstrip().startswith(b"HloModule "):
        found = raw[:40].decode("utf-8", "replace").partition("\n")[0]
        raise InputError(f"{text.path}: expected HLO text that begins with 'HloModule', found {found!r}")
    if not raw[-_TAIL_BYTES:].rstrip().rpartition(b"\n")[2].startswith(b"}"):
        raise InputError(
            f"{text.path}: the text stops in the middle (did the compiler crash?): remove it to see the rest"
        )
    return raw


def matching(texts: Sequence[PassText], wanted: str) -> list[int]:
    """Return the places of the texts that ``wanted`` names: a number, a pass, PIPELINE/PASS, or the name of a pass's
    step."""
    if wanted.isdecimal() and len(wanted) < 10:
        return [place for place, text in enumerate(texts) if text.number == int(wanted)]
    names = [(text.name, f"{text.pipeline}/{text.name}", text.pipeline if text.inside else None) for text in texts]
    return [place for place, known in enumerate(names) if wanted in known]
