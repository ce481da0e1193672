"""Modules that the tests of the readers share, and a reader of every attribute of an instruction."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from hloinspect.hlo import Computation, Instruction, Module
from tests.support.places import DATA, ROOT

CORPUS = Path(os.environ.get("HLOINSPECT_CORPUS", ROOT.parent / "shared" / "corpus"))

FIELDS = (
    "name",
    "opcode",
    "shape",
    "operands",
    "is_root",
    "index",
    "computation",
    "called",
    "metadata",
    "backend_config",
    "frontend_attributes",
    "custom_call_target",
    "tuple_index",
    "parameter_number",
    "constant_integer",
    "comparison_direction",
    "dot_dimensions",
    "dim_labels",
    "feature_groups",
    "replica_groups",
    "window_text",
)
"""Attributes of an instruction that must be equal for both readers."""

DERIVED = ("start_of", "done_of", "is_generic_async_start", "called_names")


@cache
def zoo_text() -> str:
    """Return a small module with one of each kind of instruction, written for these tests."""
    return (DATA / "zoo.hlo.txt").read_text(encoding="utf-8")


@cache
def zoo_proto() -> bytes:
    """Return the same module, parsed and serialized by jaxlib 0.12."""
    return (DATA / "zoo.hlo.pb").read_bytes()


def text_of(body: str, *, header: str = "HloModule m, is_scheduled=true", before: str = "") -> str:
    """Return a module whose entry computation has the lines of ``body``."""
    lines = "\n".join("  " + line.strip() for line in body.strip().splitlines())
    return f"{header}\n\n{before}ENTRY %main (p: f32[]) -> f32[] {{\n{lines}\n}}\n"


def read_everything(module: Module) -> int:
    """Read every attribute of the module, its computations and its instructions. Return the number of answers."""
    answers = [repr(part) for part in (module.name, module.attributes, module.platform, module.instruction_count)]
    for computation in module.computations.values():
        answers += [repr(item) for item in (computation.may_touch_host(), computation.execution_thread)]
        answers += [repr(item) for item in (computation.parameters, computation.root)] if len(computation) else []
        for instruction in computation:
            answers += read_attributes(module, computation, instruction)
    return len(answers)


def read_attributes(module: Module, computation: Computation, instruction: Instruction) -> list[str]:
    """Return the answers of one instruction, as text."""
    answers: list[Any] = [getattr(instruction, field) for field in (*FIELDS, *DERIVED)]
    answers += [module.resolve(computation, operand) for operand in instruction.operands]
    answers += [computation.find(instruction.name), instruction.shape.leaves, instruction.shape.host_bytes]
    return [repr(answer) for answer in answers]
