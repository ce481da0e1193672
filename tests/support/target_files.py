"""Target files as a user has them, and where the built-in ones lie."""

from __future__ import annotations

from pathlib import Path

from tests.support.places import ROOT

SPECS = ROOT / "hloinspect" / "hardware" / "specs"


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    """Write a target file into a folder, and return its path."""
    path = folder / name
    path.write_text(text)
    return str(path)
