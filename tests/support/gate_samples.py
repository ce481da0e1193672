"""Modules for the gate's tests: fixtures as another compiler run, another machine or another jax would have written
them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from tests.support.places import ROOT

FIXTURES = ROOT / "fixtures" / "jax0.12.0.1"
OLD_FIXTURES = ROOT / "fixtures" / "jax0.10.2"
SMALL = FIXTURES / "gb200_host_stack_donated" / "module.hlo.txt.gz"
"""One transfer, that is waited for: for tests to which it does not matter what is in a module."""


def fixture_text(name: str, home: Path = FIXTURES) -> str:
    """The text of a fixture's module."""
    return gzip.decompress((home / name / "module.hlo.txt.gz").read_bytes()).decode()


def renumbered(text: str) -> str:
    """The same module as an unrelated change would leave it: other numbers in all names, other lines, another home."""
    text = re.sub(r"(?<=[A-Za-z_\-])\.(\d+)\b", lambda match: f".{int(match[1]) + 7000}", text)
    text = re.sub(r"\bline=(\d+)", lambda match: f"line={int(match[1]) + 31}", text)
    return text.replace("/home/user/", "/builds/group/")


def compiled_directory(folder: Path, name: str, home: Path = FIXTURES) -> Path:
    """A fixture as `hloinspect compile` would have left it. Fixtures keep no StableHLO: an empty module stands in for
    it, and what asks for StableHLO has nothing to look at."""
    folder.mkdir(parents=True)
    for file in ("module.hlo.txt", "module.hlo.pb"):
        (folder / file).write_bytes(gzip.decompress((home / name / f"{file}.gz").read_bytes()))
    (folder / "module.stablehlo.mlir").write_text("module @jit_step {\n}\n", encoding="utf-8")
    manifest = json.loads((home / name / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder
