"""Tests that hold only from some version of jax on, with what earlier versions do otherwise."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

import pytest

RELEASE = importlib.metadata.version("jax") if importlib.util.find_spec("jax") else "0"
JAX = tuple(int(part) for part in re.findall(r"\d+", RELEASE)[:2])
"""Major and minor version of the jax of this environment; (0,) without any."""


def since(minor: int, otherwise: str) -> pytest.MarkDecorator:
    """Return the mark of a test that holds from jax 0.``minor`` on; ``otherwise`` says what earlier ones do."""
    return pytest.mark.skipif(len(JAX) > 1 and (0, minor) > JAX, reason=f"before jax 0.{minor}, {otherwise}")
