"""The form of a module: what it schedules, in which order, and with which kernels. Names do not count.

Two modules have the same form where the device does the same in the same order. How a module is printed does not count
either: an async operation may be written with a computation around it or without, and one text has ``%t#1`` where
another has a get-tuple-element. The values of constants, metadata, and where a slice begins are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from hloinspect.errors import HloParseError
from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.scan import split_attributes, unquote
from hloinspect.hlo.shape import Shape
from hloinspect.offload.program import CONTROL_FLOW
from hloinspect.offload.transfers import Offload
from hloinspect.predict.collective import COLLECTIVES
from hloinspect.report.build import BOOKKEEPING, spelling

_HASH_BYTES = 8
_BEFORE_SCHEDULING = "fingerprint_before_lhs"
_PRODUCT: Final = "matrix product"
_PRODUCT_KINDS = frozenset({"__triton_gemm", "__triton_nested_gemm_fusion", "__cudnn$fusion"})
_AROUND_PRODUCTS = frozenset({"dot", "fusion", "transpose", "copy", "reshape", *BOOKKEEPING})


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduled instruction.

    ``key`` is what it does: its opcode, its shapes and what it computes. ``value`` is a hash of that and of what its
    operands are made of, in its computation. ``shown`` is a short text. ``kernel`` is the kernel that autotuning chose,
    "" where there is nothing to choose, and ``settings`` has all that was chosen for it.
    """

    key: str
    value: str
    shown: str
    kernel: str
    settings: str


@dataclass(frozen=True)
class Form:
    """A module and its steps: for each executed computation, callers before callees, by place in its schedule.

    An instruction that does nothing (a get-tuple-element, a bitcast) is no step.
    """

    offload: Offload
    steps: Mapping[str, Mapping[int, Step]]

    @property
    def module(self) -> Module:
        """Return the module."""
        return self.offload.program.module

    @cached_property
    def schedule(self) -> tuple[Step, ...]:
        """Return the steps of all computations in a row."""
        return tuple(step for steps in self.steps.values() for step in steps.values())

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash that two modules have in common where they do the same, in the same order, with the same
        kernels."""
        lines: list[str] = []
        for steps in self.steps.values():
            lines += (f"{step.value} {step.settings}" for step in steps.values())
            lines.append("}")
        return _digest(lines)


def form_of(offload: Offload) -> Form:
    """Return the form of a module. Raises HloParseError where its computations are nested too deeply."""
    contents = _Contents(offload.program.module)
    try:
        return Form(offload, {one.name: contents.steps(one) for one in offload.program.computations()})
    except RecursionError:
        raise HloParseError("its computations are nested too deeply") from None


def before_scheduling(module: Module) -> str:
    """Return the fingerprint that XLA took of the module before it scheduled it, "" where it has none.

    XLA's GPU compiler writes it to the module's frontend attributes (xla/service/gpu/gpu_hlo_schedule.cc).
    """
    attributes = module.attributes.get("frontend_attributes", "")
    if _BEFORE_SCHEDULING not in attributes:
        return ""
    return unquote(split_attributes(attributes[1:-1]).get(_BEFORE_SCHEDULING, ""))


@dataclass(frozen=True, slots=True)
class _Value:
    """What an instruction's result is made of. ``parts`` are the elements of a tuple, where they are known."""

    text: str
    parts: tuple[_Value, ...] = ()
    first_is_all: bool = False

    def at(self, index: int) -> _Value:
        if 0 <= index < len(self.parts):
            return self.parts[index]
        return self if self.first_is_all and index == 0 else _Value(f"{self.text}.{index}")


_NOT_FOUND = _Value("?")


class _Contents:
    """What the computations of a module do. Each is looked at once."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._steps: dict[str, tuple[dict[int, Step], _Value]] = {}
        self._contents: dict[str, tuple[str, str]] = {}

    def steps(self, computation: Computation) -> dict[int, Step]:
        """Return the steps of a computation, by place in its schedule."""
        return self._walked(computation)[0]

    def _walked(self, computation: Computation) -> tuple[dict[int, Step], _Value]:
        """Return the steps, and what the result is made of."""
        if computation.name not in self._steps:
            steps: dict[int, Step] = {}
            values: dict[str, _Value] = {}
            for instruction in computation:
                operands = [_operand(operand, values) for operand in instruction.operands]
                if instruction.opcode in BOOKKEEPING:
                    values[instruction.name] = _passed_on(instruction, operands)
                    continue
                step, is_product = self._step(instruction, operands)
                steps[instruction.index] = step
                values[instruction.name] = _Value(step.value, (), is_product)
            root = values.get(computation.root.name, _NOT_FOUND) if len(computation) else _NOT_FOUND
            self._steps[computation.name] = steps, root
        return self._steps[computation.name]

    def _step(self, instruction: Instruction, operands: list[_Value]) -> tuple[Step, bool]:
        """Return the step, and whether it is a matrix product by itself: the kernels for one are many."""
        own, begun = self._inner(instruction)
        opcode = begun or spelling(own.opcode)
        leaves = [_leaf(leaf) for _, leaf in instruction.shape.leaves if leaf.dims]
        kernel, settings = _kernel(own)
        content = what = ""
        is_product = bool(kernel) and self._is_product(own)
        if is_product:  # its other results are memory to work in, and part of the choice
            shape = instruction.shape.leaves[0][1]
            opcode, leaves, what = _PRODUCT, [f"{shape.dtype}{shape.dims}"], _epilogue(own)
        elif not opcode.endswith(("-done", "-update")):
            content, inner = self._called(own)
            what = _attributes(own, opcode)
            if opcode not in CONTROL_FLOW:  # the computations of these have steps of their own
                what, settings = f"{what} {content}", f"{settings} {inner}".strip()
        key = f"{'start of ' if begun else ''}{opcode} {leaves} {what}"
        value = _digest((key, content, *(operand.text for operand in operands)))
        return Step(key, value, f"{opcode} {_largest(instruction.shape)}", kernel, settings), is_product

    def _inner(self, instruction: Instruction) -> tuple[Instruction, str]:
        """Return the operation that an instruction stands for, and its opcode where the instruction only begins it."""
        if not instruction.is_generic_async_start:
            return instruction, ""
        if instruction.start_of != "async":
            return instruction, instruction.start_of
        body = self._module.computations.get(next(iter(instruction.called_names), ""))
        found = [one for one in body or () if one.opcode not in BOOKKEEPING]
        return (found[0], found[0].opcode) if len(found) == 1 else (instruction, "async")

    def _called(self, instruction: Instruction) -> tuple[str, str]:
        """Return hashes of what the called computations do, and of what was chosen for the kernels in them."""
        found = [self._content(name) for name in instruction.called_names]
        if not found:
            return "", ""
        settings = [chosen for _, chosen in found if chosen]
        return _digest(content for content, _ in found), _digest(settings) if settings else ""

    def _content(self, name: str) -> tuple[str, str]:
        if name not in self._contents:
            computation = self._module.computations.get(name)
            if computation is None:
                return "?", ""
            computation = self._module.alike(computation)
            steps, root = self._walked(computation)
            values = sorted(step.value for step in steps.values())
            settings = sorted(step.settings for step in steps.values() if step.settings)
            self._contents[name] = _digest((*values, root.text)), " ".join(settings)
        return self._contents[name]

    def _is_product(self, instruction: Instruction) -> bool:
        """Return whether a kernel computes one matrix product and nothing else."""
        if instruction.opcode == "custom-call":
            return instruction.custom_call_target.startswith("__cublas")
        if _mapping(instruction.backend_config, "fusion_backend_config").get("kind") not in _PRODUCT_KINDS:
            return False
        opcodes = self._opcodes(instruction, 0)
        return opcodes.count("dot") == 1 and _AROUND_PRODUCTS.issuperset(opcodes)

    def _opcodes(self, instruction: Instruction, depth: int) -> list[str]:
        found: list[str] = []
        for name in instruction.called_names:
            body = self._module.computations.get(name)
            for one in body or ():
                found.append(one.opcode)
                if one.opcode == "fusion":
                    found += self._opcodes(one, depth + 1) if depth < _MAX_NESTED else ["?"]
        return found


_MAX_NESTED = 4
"""Fusions in fusions that make a matrix product: its two operands and the loop around them have one each."""


def _operand(operand: Operand, values: Mapping[str, _Value]) -> _Value:
    found = values.get(operand.name, _NOT_FOUND)
    for index in operand.path:
        found = found.at(index)
    return found


def _passed_on(instruction: Instruction, operands: list[_Value]) -> _Value:
    """Return the value of an instruction that computes nothing."""
    if instruction.opcode == "parameter":
        return _Value(f"p{instruction.parameter_number}")
    if instruction.opcode == "tuple":
        return _Value(_digest(operand.text for operand in operands), tuple(operands))
    if not operands:
        return _Value(f"{instruction.opcode} {instruction.shape}")
    return operands[0].at(instruction.tuple_index) if instruction.opcode == "get-tuple-element" else operands[0]


# ---- texts


def _digest(parts: Iterable[str]) -> str:
    return blake2b("\n".join(parts).encode("utf-8", "replace"), digest_size=_HASH_BYTES).hexdigest()


def _leaf(leaf: Shape) -> str:
    """Return an array with its memory, and its layout where that is not the usual one."""
    usual = tuple(range(len(leaf.dims) - 1, -1, -1))
    layout = "" if leaf.minor_to_major in ((), usual) else str(leaf.minor_to_major)
    return f"{leaf.dtype}{leaf.dims}{layout}S{leaf.memory_space}"


def _largest(shape: Shape) -> str:
    leaves = [leaf for _, leaf in shape.leaves]
    return str(max(leaves, key=lambda leaf: leaf.size_bytes)) if leaves else ""


def _attributes(instruction: Instruction, opcode: str) -> str:
    """Return what an opcode and shapes do not say of an operation."""
    if opcode == "custom-call":
        return instruction.custom_call_target
    if opcode == "dot":
        return str(instruction.dot_dimensions)
    if opcode == "convolution":
        return f"{instruction.dim_labels} {instruction.window_text} {instruction.feature_groups}"
    if opcode.removesuffix("-start") in COLLECTIVES:
        groups = instruction.replica_groups
        return f"{groups.groups} {groups.size} {instruction.source_target_pairs}"
    return instruction.comparison_direction if opcode == "compare" else ""


# ---- kernels


def _kernel(instruction: Instruction) -> tuple[str, str]:
    """Return the kernel that was chosen for an operation, in short and with all its settings; "" where nothing is
    chosen."""
    if instruction.opcode == "custom-call":
        target = instruction.custom_call_target
        if not target.startswith(("__cublas", "__cudnn")):
            return "", ""
        library = "cuDNN" if target.startswith("__cudnn") else "cuBLASLt" if "$lt$" in target else "cuBLAS"
        chosen = _algorithm(instruction.backend_config)
        number = chosen.get("algo_id", "?") if isinstance(chosen, dict) else chosen
        short = library if chosen is None else f"{library} algorithm {number}"
        return short, f"{library} {json.dumps(chosen, sort_keys=True)}"
    if instruction.opcode != "fusion":
        return "", ""
    config = _mapping(instruction.backend_config, "fusion_backend_config")
    kind = config.get("kind")
    if not isinstance(kind, str) or not kind.startswith(("__triton", "__cudnn")):
        return "", ""
    return _fused_kernel(kind, config), json.dumps(config, sort_keys=True)


def _algorithm(config: Mapping[str, Any]) -> object:
    """Return the algorithm in the settings of a library call, or None where the library itself chooses."""
    for value in config.values():
        if not isinstance(value, dict):
            continue
        for key in ("selected_algorithm", "algorithm"):
            if (found := value.get(key)) is not None:
                return None if found in ("-1", -1) else found
    return None


def _fused_kernel(kind: str, config: Mapping[str, Any]) -> str:
    """Return a text like ``Triton 64x128, 4 warps``."""
    if kind.startswith("__cudnn"):
        plan = _mapping(config, "cudnn_fusion_config").get("plan_id")
        return "cuDNN" if plan is None else f"cuDNN plan {plan}"
    gemm, tiled = _mapping(config, "triton_gemm_config"), _mapping(config, "block_level_fusion_config")
    sizes = [gemm.get(key) for key in ("block_m", "block_n", "block_k") if key in gemm]
    if not sizes and isinstance(outputs := tiled.get("output_tiles"), list) and outputs:
        sizes = outputs[0].get("sizes", []) if isinstance(outputs[0], dict) else []
    words = ["x".join(map(str, sizes))] if isinstance(sizes, list) and sizes else []
    words += [f"{value} warps" for value in (gemm.get("num_warps"), tiled.get("num_warps")) if value is not None]
    return f"Triton {', '.join(words)}".strip()


def _epilogue(instruction: Instruction) -> str:
    """Return what a matrix product of a library does besides: it adds to a matrix, or applies a function."""
    config = _mapping(instruction.backend_config, "gemm_backend_config")
    function, added = config.get("epilogue", "DEFAULT"), config.get("beta", 0)
    return "" if function == "DEFAULT" and not added else f"{function} {added}"


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = config.get(key)
    return found if isinstance(found, dict) else {}
