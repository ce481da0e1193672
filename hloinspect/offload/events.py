"""Work of a module with the host that is no transfer: computation there, callbacks, feeds, sends and receives.

It is reported separately from transfers and never as offload. How long the host takes is not in the module, and an
offload policy requests none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.hlo.shape import Shape
from hloinspect.kinds import HostEventKind
from hloinspect.offload.program import Program
from hloinspect.offload.records import HostEvent

HOST_COMPUTE: Final = "host_compute"
CALLBACK: Final = "callback"
SEND: Final = "send"
RECV: Final = "recv"
INFEED: Final = "infeed"
OUTFEED: Final = "outfeed"
ANNOTATION: Final = "annotation"
MANY_RESULTS: Final = "many_results"

_FEEDS: Mapping[str, HostEventKind] = {"infeed": INFEED, "outfeed": OUTFEED}
_ENDS: Mapping[str, HostEventKind] = {"send": SEND, "recv": RECV}
_HANDLER = "_xla_host_transfer_handler_name"
_CALLBACK_ENDINGS = ("python_gpu_callback", "python_callback", "python_cpu_callback")
_ANNOTATIONS = frozenset(
    {"annotate_device_placement", "MoveToHost", "MoveToDevice", "PinToDevice", "PinToDeviceSram", "PinToHost"}
)


def host_events(program: Program) -> Iterator[HostEvent]:
    """Yield all host events of a program, in the order of its computations."""
    for computation in program.computations():
        for index in _places(computation):
            event = _event(program, computation, computation.instruction(index))
            if event is not None:
                yield event


def _places(computation: Computation) -> list[int]:
    found = {*computation.ending_in("infeed", "outfeed", "send", "recv", "async-start")}
    words = ("HostExecute", "callback", *_ANNOTATIONS)
    called = computation.mentioning(*words, among=computation.ending_in("custom-call", "custom-call-start"))
    starts = set(computation.may_touch_host()).intersection(computation.ending_in("-start"))
    return sorted(found | starts | {*called})


def host_event_kind(module: Module, instruction: Instruction) -> HostEventKind | Literal[""]:
    """Return the kind of an instruction's host event, or "".

    ``compute_on`` gives a HostExecute: ``custom-call-start`` in as_text(), an ``async-start`` around a ``custom-call``
    in dumps and protos.
    """
    opcode = instruction.opcode
    if opcode in _FEEDS:
        return _FEEDS[opcode]
    if opcode in _ENDS:
        return _ENDS[opcode] if instruction.is_host_transfer or _HANDLER in instruction.frontend_attributes else ""
    if opcode in ("custom-call", "custom-call-start"):
        return _call_kind(instruction.custom_call_target)
    if opcode == "async-start":
        body = module.computations.get(next(iter(instruction.called.get("calls", ())), ""))
        if body is not None and len(body) and body.root.opcode == "custom-call":
            return _call_kind(body.root.custom_call_target)
    result = instruction.shape.at((1,)) if instruction.is_generic_async_start else None
    if result is not None and result.is_tuple and instruction.shape.host_bytes > 0:
        return MANY_RESULTS
    return ""


def _call_kind(target: str) -> HostEventKind | Literal[""]:
    if target == "HostExecute":
        return HOST_COMPUTE
    if target in _ANNOTATIONS:
        return ANNOTATION
    return CALLBACK if target.endswith(_CALLBACK_ENDINGS) else ""


def _event(program: Program, computation: Computation, instruction: Instruction) -> HostEvent | None:
    kind = host_event_kind(program.module, instruction)
    if not kind:
        return None
    operands = [program.module.shape_of(computation, operand) for operand in instruction.operands]
    result = instruction.shape.at((1,)) if instruction.is_generic_async_start else instruction.shape
    sent = sum(_device_bytes(shape) for shape in operands)
    received = _device_bytes(result)
    if kind in (SEND, OUTFEED):
        received = 0
        sent = _device_bytes(operands[0]) if operands else 0
    elif kind in (RECV, INFEED):
        sent = 0
        received = _device_bytes(instruction.shape.at((0,)) or instruction.shape)
    elif kind in (ANNOTATION, MANY_RESULTS):
        sent = received = 0
    return HostEvent(
        kind=kind,
        instruction=instruction.name,
        computation=computation.name,
        executions=program.executions[computation.name],
        to_host_bytes=sent,
        from_host_bytes=received,
        detail=_detail(program.module, instruction),
    )


def _device_bytes(shape: Shape | None) -> int:
    """Return the bytes that do not lie in host memory already."""
    return 0 if shape is None else shape.size_bytes - shape.host_bytes


def _detail(module: Module, instruction: Instruction) -> str:
    if instruction.opcode == "async-start":
        body = module.computations.get(next(iter(instruction.called.get("calls", ())), ""))
        return body.root.custom_call_target if body is not None and len(body) else ""
    return instruction.custom_call_target or instruction.frontend_attributes.get(_HANDLER, "")
