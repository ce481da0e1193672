"""Modules for the gate's tests: fixtures in the form of another compiler run, another machine or another jax."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from click.testing import CliRunner, Result

from hloinspect.cli import main
from tests.support.places import ROOT

FIXTURES = ROOT / "fixtures" / "jax0.12.0.1"
OLD_FIXTURES = ROOT / "fixtures" / "jax0.10.2"
SMALL = FIXTURES / "gb200_host_stack_donated" / "module.hlo.txt.gz"
"""A module with one transfer and a wait for it, for tests that do not depend on the module."""


def check(*arguments: str | Path) -> Result:
    """Return what `hloinspect check` ends with and says."""
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def fixture_text(name: str, home: Path = FIXTURES) -> str:
    """Return the text of a fixture's module."""
    return gzip.decompress((home / name / "module.hlo.txt.gz").read_bytes()).decode()


def renumbered(text: str) -> str:
    """Return the same module after an unrelated change: other numbers in all names, other lines, another home
    directory."""
    text = re.sub(r"(?<=[A-Za-z_\-])\.(\d+)\b", lambda match: f".{int(match[1]) + 7000}", text)
    text = re.sub(r"\bline=(\d+)", lambda match: f"line={int(match[1]) + 31}", text)
    return text.replace("/home/user/", "/builds/group/")


def compiled_directory(folder: Path, name: str, home: Path = FIXTURES) -> Path:
    """Write a fixture as `hloinspect compile` would have written it, and return its directory.

    Fixtures keep no StableHLO, so it has an empty module, in which readers of StableHLO find nothing.
    """
    folder.mkdir(parents=True)
    for file in ("module.hlo.txt", "module.hlo.pb"):
        (folder / file).write_bytes(gzip.decompress((home / name / f"{file}.gz").read_bytes()))
    (folder / "module.stablehlo.mlir").write_text("module @jit_step {\n}\n", encoding="utf-8")
    manifest = json.loads((home / name / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder
