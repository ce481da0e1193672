"""Small scheduled modules for the tests of what a program does with host memory, in the spellings of real ones."""

from __future__ import annotations

from hloinspect.hlo import Module
from hloinspect.hlo.load import load_module_bytes
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.program import build_program
from hloinspect.offload.slices import SliceCheck, check_slices
from hloinspect.offload.transfers import Offload, Transfer, find_offload

GPU = ', backend_config={"operation_queue_id":"1"}'
STACK_BYTES, SLICE_BYTES = 8 * 64 * 4, 64 * 4

DUS_BODY = """
%wrapped_dus (p0: f32[8,64], p1: f32[1,64], p2: s32[], p3: s32[]) -> f32[8,64] {
  %p0 = f32[8,64]{1,0:S(5)} parameter(0)
  %p1 = f32[1,64]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  %p3 = s32[] parameter(3)
  ROOT %dus = f32[8,64]{1,0:S(5)} dynamic-update-slice(%p0, %p1, %p2, %p3)CONFIG
}
"""
DS_BODY = """
%wrapped_ds (q0: f32[8,64], q1: s32[], q2: s32[]) -> f32[1,64] {
  %q0 = f32[8,64]{1,0:S(5)} parameter(0)
  %q1 = s32[] parameter(1)
  %q2 = s32[] parameter(2)
  ROOT %ds = f32[1,64]{1,0} dynamic-slice(%q0, %q1, %q2), dynamic_slice_sizes={1,64}CONFIG
}
"""
SLICE_CONFIG = ', backend_config={"dynamic_slice_config":{"loop_index":"0","byte_offset":"0","byte_stride":"256"}}'
DUS_START = (
    "((f32[8,64]{1,0:S(5)}, f32[1,64]{1,0}, s32[], s32[]), f32[8,64]{1,0:S(5)}, u32[]) "
    "fusion-start(STACK, UPDATE, I, Z), kind=kLoop, calls=%wrapped_dus"
)
DS_START = (
    "((f32[8,64]{1,0:S(5)}, s32[], s32[]), f32[1,64]{1,0}, u32[]) "
    "fusion-start(STACK, I, Z), kind=kLoop, calls=%wrapped_ds"
)


def with_config(body: str, config: str = "") -> str:
    """Return a fusion's slice inside an async start, with or without the marker of a copy."""
    return body.replace("CONFIG", config)


def start(form: str, *operands: str) -> str:
    """Return DUS_START or DS_START on its operands."""
    names = ("STACK", "UPDATE", "I", "Z") if "UPDATE" in form else ("STACK", "I", "Z")
    head, tail = form.split("fusion-start(")
    for name, operand in zip(names, operands, strict=True):
        tail = tail.replace(name, operand, 1)
    return f"{head}fusion-start({tail}"


def module_text(body: str, computations: str = "", header: str = "") -> str:
    """Return a module whose entry computation is ``body``; other computations come before it."""
    lines = "\n".join("  " + line.strip() for line in body.strip().splitlines())
    return (
        f"HloModule m, is_scheduled=true{header}\n\n{computations.strip()}\n\nENTRY %main () -> f32[] {{\n{lines}\n}}\n"
    )


def offload_in(body: str, computations: str = "", header: str = "") -> Offload:
    """Return what the module of these lines does with host memory."""
    return find_offload(load_module_bytes(module_text(body, computations, header).encode()))


def only(offload: Offload) -> Transfer:
    """Return the only transfer."""
    (transfer,) = offload.transfers
    return transfer


def moved(offload: Offload) -> list[tuple[str, str, bool, int, str]]:
    """Return direction, mechanism, whether it is asynchronous, bytes and start of each transfer."""
    return [(t.direction, t.mechanism, t.asynchronous, t.bytes, t.start) for t in offload.transfers]


__all__ = ["D2H", "H2D"]


def checks_of(module: Module) -> tuple[SliceCheck, ...]:
    return check_slices(build_program(module)).checks


def wrong(module: Module) -> list[str]:
    """Return the instructions whose slices are not where their index says."""
    return [check.instruction for check in checks_of(module) if not check.agrees]
