"""Results that are written over an operand's buffer: those that must be, and those that may be if the operand dies.

The rules are XLA's (openxla/xla: hlo/analysis/alias_info.cc, ``GetInPlaceInputOutputPairs``; service/gpu,
``FusionCanShareBufferHint``; hlo_dataflow_analysis.cc, ``CanShareOperandBufferWithUser``), applied to the optimized
module.
"""

from __future__ import annotations

import re

from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.shape import Shape, dtype_bits
from hloinspect.hlo.text import TextInstruction

Path = tuple[int, ...]
InPlace = dict[Path, tuple[int, Path]]
"""The operand that each leaf of a result is written over: by the leaf's path, the operand's number and the path into
it."""

_UPDATES = frozenset({"dynamic-update-slice", "scatter"})
_ELEMENTWISE = frozenset(
    {
        "abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "compare", "complex", "convert",
        "cosine", "count-leading-zeros", "divide", "erf", "exponential", "exponential-minus-one", "floor", "imag",
        "is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or",
        "popcnt", "power", "real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt",
        "select", "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt",
        "stochastic-convert", "subtract", "tan", "tanh", "xor",
    }
)  # fmt: skip
_ALIASES = re.compile(r"\{([\d, ]*)\}:\s*\((\d{1,9}),\s*\{([\d, ]*)\}")


def _path(text: str) -> Path:
    return tuple(int(part.strip()) for part in text.split(",") if part.strip().isdecimal() and len(part) < 10)


def read_aliases(text: str) -> InPlace:
    """Return the results in a text such as ``{0}: (1, {}, may-alias)``, with the operands in which they lie."""
    return {_path(output): (int(number), _path(path)) for output, number, path in _ALIASES.findall(text)}


def in_place(module: Module, instruction: Instruction) -> InPlace:
    """Return the leaves of a result that must lie in an operand's buffer.

    For a generic async start the paths are those inside its result, without the ``{1}``.
    """
    opcode = instruction.opcode
    if instruction.is_generic_async_start:
        wrapped = _wrapped(module, instruction)
        return in_place(module, wrapped) if wrapped is not None else _body_in_place(module, instruction)
    if opcode == "dynamic-update-slice":
        return {(): (0, ())}
    if opcode == "scatter":
        count = (len(instruction.operands) - 1) // 2
        return {(): (0, ())} if count <= 1 else {(n,): (n, ()) for n in range(count)}
    if opcode == "all-reduce-start":
        operands = instruction.operands
        return {(): (0, ())} if len(operands) == 1 else {(n,): (n, ()) for n in range(len(operands))}
    if opcode == "ragged-all-to-all":
        return {(): (1, ())}
    if opcode == "custom-call":
        return _declared(instruction) or _matmul(instruction)
    if opcode == "fusion":
        return _body_in_place(module, instruction)
    return {}


def _wrapped(module: Module, start: Instruction) -> Instruction | None:
    """Return the instruction that an ``async-start`` contains if its operands are the parameters in order, else
    None."""
    if start.start_of != "async":
        return None
    body = module.computations.get(next(iter(start.called_names), ""))
    if body is None or not 0 < len(body) <= 1 + len(start.operands):
        return None
    root = body.root
    numbers = []
    for operand in root.operands:
        parameter = body.find(operand.name)
        numbers.append(parameter.parameter_number if parameter is not None else -1)
    return root if numbers == list(range(len(start.operands))) else None


def _declared(instruction: Instruction) -> InPlace:
    """Return ``output_to_operand_aliasing``, which only text has: the reader of protos does not keep it."""
    if not isinstance(instruction, TextInstruction):
        return {}
    text = instruction.attributes.get("output_to_operand_aliasing", "")
    return read_aliases(text)


def _matmul(instruction: Instruction) -> InPlace:
    """Return the operand ``c`` of ``a b + beta c``, which cuBLAS overwrites."""
    if not instruction.custom_call_target.startswith("__cublas") or len(instruction.operands) < 3:
        return {}
    config = instruction.backend_config.get("gemm_backend_config", {})
    beta = config.get("beta", 0) if isinstance(config, dict) else 0
    return {(0,): (2, ())} if beta else {}


def _body_in_place(module: Module, fusion: Instruction) -> InPlace:
    """Return the results of a fusion that update a parameter in place, also through tuples and bitcasts."""
    body = module.computations.get(next(iter(fusion.called.get("calls", ())), ""))
    if body is None:
        return {}
    body = module.alike(body)
    found: InPlace | None = module.memo.get(("in place", body.name))
    if found is None:
        found = module.memo[("in place", body.name)] = _updated_in_place(module, body)
    return found


def _updated_in_place(module: Module, body: Computation) -> InPlace:
    if not len(body) or not body.ending_in(*_UPDATES):
        return {}
    root = body.root
    outputs: list[tuple[Path, Operand]] = [((), Operand(root.name))]
    if root.opcode == "tuple":
        outputs = [((number,), operand) for number, operand in enumerate(root.operands)]
    found: InPlace = {}
    for path, operand in outputs:
        update = _through(module, body, operand)
        if update is None or update.opcode not in _UPDATES or not update.operands:
            continue
        target = _through(module, body, update.operands[0])
        if target is not None and target.opcode == "parameter":
            found[path] = (target.parameter_number, ())
    return found


def _through(module: Module, body: Computation, operand: Operand) -> Instruction | None:
    instruction, path = module.resolve(body, operand)
    for _ in range(len(body)):
        if instruction is None or instruction.opcode != "bitcast" or not instruction.operands:
            break
        instruction, path = module.resolve(body, instruction.operands[0])
    return None if path else instruction


def may_reuse(module: Module, user: Instruction, path: Path, number: int, operand: Shape) -> bool:
    """Return whether a leaf of a result may be written over operand ``number`` if that is not needed afterwards.

    ``operand`` is the shape of its array.
    """
    result = user.shape.at(path)
    if result is None:
        return False
    if user.opcode == "fusion":
        body = module.computations.get(next(iter(user.called.get("calls", ())), ""))
        if body is None or not len(body):
            return False
        if operand.element_count != result.element_count or dtype_bits(operand.dtype) != dtype_bits(result.dtype):
            return False
        return _walks_alike(module.alike(body), path, number)
    if user.opcode in ("all-reduce", "collective-broadcast"):
        return len(user.operands) == 1 or path == (number,)
    same = operand == result
    return same and user.opcode in _ELEMENTWISE


def _walks_alike(body: Computation, path: Path, number: int) -> bool:
    """Return whether a fusion reads a parameter in the order in which it writes the leaf at ``path``.

    Only then it may write over the parameter. All that depends on the parameter must be elementwise, a bitcast, or the
    update at the root. A reduction at the root is computed first and does not matter.
    """
    parameters = body.parameters
    if number >= len(parameters):
        return False
    root = body.root
    outputs = [operand.name for operand in root.operands] if root.opcode == "tuple" else [root.name]
    place = path[0] if path else 0
    if place >= len(outputs):
        return False
    output = body.find(outputs[place])
    if output is None:
        return False
    hero = output
    if hero.opcode == "bitcast" and hero.operands:
        hero = body.find(hero.operands[0].name) or hero
    reached = False
    seen = {parameters[number].name}
    pending = [parameters[number]]
    while pending:
        current = pending.pop()
        reached = reached or current is output
        if current.opcode == "reduce":
            continue
        for user, position in body.users.get(current.name, ()):
            if user.name not in seen:
                seen.add(user.name)
                pending.append(user)
            if not _keeps_order(user, position, hero):
                return False
    others = [name for name in outputs if name != output.name]
    if others and hero.opcode not in _ELEMENTWISE and any(name in seen for name in others):
        return False
    return reached


def _keeps_order(user: Instruction, position: int, hero: Instruction) -> bool:
    if user.opcode in ("bitcast", "tuple", "reduce") or user.opcode in _ELEMENTWISE:
        return True
    if user is hero and user.opcode in _UPDATES:
        return position <= 1
    if user.opcode == "dynamic-slice" and hero.opcode == "dynamic-update-slice":
        return user.operands[:1] == hero.operands[:1] and user.operands[1:] == hero.operands[2:]
    return False
