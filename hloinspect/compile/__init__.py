"""Compiles a step for hardware that is not there, in a child process.

Only the child imports jax, so an abort in XLA or an exception in the user's code is one error here.
"""

from __future__ import annotations

from hloinspect.compile.launch import compile_step
from hloinspect.compile.result import CompileResult, Manifest, OffloadName, load_result
from hloinspect.given import Production

__all__ = ["CompileResult", "Manifest", "OffloadName", "Production", "compile_step", "load_result"]
