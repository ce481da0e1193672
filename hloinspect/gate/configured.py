"""Differences between the configurations of two compilations, a line each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloinspect.inputs.manifest import Configuration

UNNAMED = "compile options: they differ in a way that has no name"


def configuration_changes(
    had: Configuration, has: Configuration, *, same_target: bool, hash_decides: bool
) -> list[str]:
    """Return lines like ``optimization level: unset -> O1``.

    ``same_target``: libraries and target configurations can be compared. ``hash_decides``: nothing else that enters the
    compile options (flags, devices, releases) differs, so different hashes show a difference that has no name.
    """
    found = []
    if had.compile_options_sha256 is not None and has.compile_options_sha256 is not None:
        found += _changed(had.compile_options, has.compile_options)
        if not found and hash_decides and had.compile_options_sha256 != has.compile_options_sha256:
            found.append(UNNAMED)
    found += _changed(had.jax, has.jax)
    found += _changed(had.environment, has.environment)
    if same_target:
        found += [_library(line) for line in _changed(had.libraries, has.libraries)]
        if had.target_config_sha256 != has.target_config_sha256:
            hashes = [str(side.target_config_sha256)[:12] for side in (had, has)]
            found.append(f"target's configuration for XLA: {hashes[0]} -> {hashes[1]}")
    return found


def list_change(had: Sequence[str], has: Sequence[str]) -> str:
    """Return what was removed from and added to a list of words: ``-old +new``."""
    old, new = set(had), set(has)
    changed = [*(f"-{word}" for word in had if word not in new), *(f"+{word}" for word in has if word not in old)]
    return " ".join(dict.fromkeys(changed)) or "in another order"


def _changed(had: Mapping[str, str], has: Mapping[str, str]) -> list[str]:
    return [
        f"{_words(name)}: {_values(had.get(name), has.get(name))}"
        for name in sorted({*had, *has})
        if had.get(name) != has.get(name)
    ]


def _words(name: str) -> str:
    """Return the name of an option as words. A flag, a variable and a name of JAX's stay what a user types."""
    return name.replace("_", " ") if re.fullmatch(r"(?!xla_|jax_)[a-z_]+", name) else name


def _values(had: str | None, has: str | None) -> str:
    """Return both values. For lists of flags return those that were removed and added."""
    if any("--" in (value or "") for value in (had, has)):
        return list_change((had or "").split(), (has or "").split())
    return f"{'unset' if had is None else had} -> {'unset' if has is None else has}"


def _library(line: str) -> str:
    """Return the line of a library, in words where only its content differs."""
    same = re.fullmatch(r"(\S+): (\S+) (\w+) -> \2 (\w+)", line)
    return f"{same[1]}: {same[2]} with another library ({same[3]} -> {same[4]})" if same else line
