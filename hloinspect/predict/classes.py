"""Classes of instructions: the words in which a profile's time and a prediction are added up."""

from __future__ import annotations

import re

from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.kinds import InstructionClass
from hloinspect.offload.program import CONTROL_FLOW
from hloinspect.predict.collective import COLLECTIVES, CONTINUES, MAX_WRAPPING, fused_collective
from hloinspect.predict.cost import MAX_FUSION_NESTING

_ATTENTION = re.compile(r"fmha|attention|attn|(?:splash|flash)_m[hq]a")
"""Names of attention kernels: cuDNN (``__cudnn$fmha...``), TransformerEngine (``te_fused_attn_...``), and the Pallas
kernels of JAX and MaxText (``splash_mha_fwd``, ``flash_attention``)."""

_HEROES: tuple[InstructionClass, ...] = (
    *("matmul", "convolution", "attention", "scatter", "sort", "reduce", "dynamic-update-slice", "transpose"),
    *("gather", "concatenate", "custom call"),
)
"""What a fusion is called after, the first of them that is in it. XLA:GPU chooses the emitter of a fusion by its hero
(hlo_fusion_analysis.cc, GetEmitterFusionKind) in about this order."""

_BY_OPCODE: dict[str, InstructionClass] = {
    "dot": "matmul",
    "scatter": "scatter",
    "select-and-scatter": "scatter",
    "sort": "sort",
    "topk": "sort",
    "reduce": "reduce",
    "reduce-window": "reduce",
    "dynamic-update-slice": "dynamic-update-slice",
    "transpose": "transpose",
    "gather": "gather",
    "concatenate": "concatenate",
    "copy": "copy",
    "slice": "copy",
    "dynamic-slice": "copy",
    "reshape": "copy",
}
_NO_WORK = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "reshape"})


def class_of(module: Module, computation: Computation, instruction: Instruction) -> InstructionClass:
    """Return the class of an instruction that works on the device alone. An async start, and its wait, are of the class
    of what they start."""
    source, within = _worker(module, computation, instruction)
    opcode = source.opcode
    if (own := _collective(opcode)) is not None:
        return own
    if opcode == "fusion":
        inside = fused_collective(module, source)
        if inside is not None and inside[0] != CONTINUES:
            return _collective(inside[2].opcode) or "other"
        return _fusion(module, source, 0)
    return "control flow" if opcode in CONTROL_FLOW else _plain(module, within, source)


def class_by_name(name: str) -> InstructionClass:
    """Return the class of an instruction whose module is missing: names of collectives begin with their opcode."""
    return _collective(re.sub(r"(?:-start|-done)?[.\d]*$", "", name)) or "unknown"


def _worker(module: Module, computation: Computation, instruction: Instruction) -> tuple[Instruction, Computation]:
    """Return the instruction that an async start or done stands for, and its computation."""
    for _ in range(MAX_WRAPPING):
        if not instruction.done_of and not instruction.opcode.endswith("-update"):
            break
        if not instruction.operands:
            return instruction, computation
        begun, _ = module.resolve(computation, instruction.operands[0])
        if begun is None:
            return instruction, computation
        instruction = begun
    opcode = instruction.start_of or instruction.opcode
    for _ in range(MAX_WRAPPING):
        wraps = instruction.is_generic_async_start or opcode in ("async", "call")
        body = module.computations.get(next(iter(instruction.called_names), "")) if wraps else None
        if body is None or not len(body):
            break
        instruction, computation = body.root, body
        opcode = instruction.opcode
    return instruction, computation


def _collective(opcode: str) -> InstructionClass | None:
    opcode = opcode.removesuffix("-start").removesuffix("-done")
    if opcode not in COLLECTIVES:
        return None
    known: dict[str, InstructionClass] = {
        "all-gather": "all-gather",
        "all-reduce": "all-reduce",
        "reduce-scatter": "reduce-scatter",
        "all-to-all": "all-to-all",
        "ragged-all-to-all": "all-to-all",
        "collective-permute": "collective-permute",
    }
    return known.get(opcode, "other collective")


def _fusion(module: Module, fusion: Instruction, depth: int) -> InstructionClass:
    body = module.computations.get(next(iter(fusion.called.get("calls", ())), ""))
    if body is None or depth >= MAX_FUSION_NESTING:
        return "other"
    memo = ("class", module.alike(body).name)
    known: InstructionClass | None = module.memo.get(memo)
    if known is None:
        known = module.memo[memo] = _body(module, body, depth)
    return known


def _body(module: Module, body: Computation, depth: int) -> InstructionClass:
    """Return the class of a fusion by what is in it: the first hero, else a collective, else a copy or a loop.

    A fusion of a TPU that works beside a collective holds a copy of it (``fused_collective``), so a hero is first.
    """
    found: set[InstructionClass] = set()
    opcodes: set[str] = set()
    collective: InstructionClass | None = None
    for index, (opcode, _) in enumerate(body.outline()):
        if opcode in _NO_WORK:
            continue
        opcodes.add(opcode)
        collective = _collective(opcode) or collective
        if opcode == "fusion":
            found.add(_fusion(module, body.instruction(index), depth + 1))
        elif _BY_OPCODE.get(opcode, "copy") != "copy" or opcode in ("convolution", "custom-call"):
            found.add(_plain(module, body, body.instruction(index)))
    first = next((hero for hero in _HEROES if hero in found), None)
    if first is not None or collective is not None:
        return first or collective or "other"
    return "copy" if opcodes <= {"copy", "slice", "dynamic-slice", "fusion"} and found <= {"copy"} else "loop"


def _plain(module: Module, computation: Computation, instruction: Instruction) -> InstructionClass:
    opcode = instruction.opcode.removesuffix("-start").removesuffix("-done")
    if opcode == "convolution":
        # XLA:TPU writes matrix products as convolutions (convolution.py); only the operation's name distinguishes them.
        is_product = module.platform == "tpu" and "conv_general_dilated" not in instruction.metadata.op_name
        return "matmul" if is_product else "convolution"
    if opcode == "custom-call":
        return _custom_call(instruction)
    if opcode in ("infeed", "outfeed", "send", "recv", "partition-id", "replica-id", "rng-get-and-update-state"):
        return "other"
    return _BY_OPCODE.get(opcode, "loop")


def _custom_call(call: Instruction) -> InstructionClass:
    target = call.custom_call_target
    if target.startswith(("__cublas", "__triton_gemm")):
        return "matmul"
    if _ATTENTION.search(target) or _ATTENTION.search(call.name):
        return "attention"
    if target.startswith("__cudnn$conv"):
        return "convolution"
    if target.startswith("__cub$") or target == "TopK":
        return "sort"
    last = call.metadata.op_name.rpartition("/")[0]  # the name of a Pallas kernel stands before pallas_call
    return "attention" if call.metadata.op_name.endswith("pallas_call") and _ATTENTION.search(last) else "custom call"
