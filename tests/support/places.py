"""Paths of the project's files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
CASES = DATA / "cases"
FIXTURES = ROOT / "fixtures"
SUPPORT = ROOT / "tests" / "support"
