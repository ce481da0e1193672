"""Modules of one counted loop, as text, and how many iterations the code under test finds in them."""

from __future__ import annotations

from hloinspect.hlo.evaluate import trip_count
from hloinspect.hlo.load import load_module_bytes
from hloinspect.hlo.model import Module


def module_of(text: str) -> Module:
    return load_module_bytes(text.encode())


def loop_text(
    start: str, step: str, condition: str, dtype: str = "s32", state: str = "", carried: str = "", config: str = ""
) -> str:
    """Return a loop over (i, x): ``step`` makes %next from %i, ``condition`` makes the root from %c."""
    kind = f"({dtype}[], f32[4]{{0}}{state})"
    return f"""HloModule m, is_scheduled=true

%body (p: f32[]) -> f32[] {{
  %p = {kind} parameter(0)
  %i = {dtype}[] get-tuple-element(%p), index=0
  %x = f32[4]{{0}} get-tuple-element(%p), index=1
  {step}
  ROOT %r = {kind} tuple(%next, %x{carried})
}}

%condition (q: f32[]) -> pred[] {{
  %q = {kind} parameter(0)
  %c = {dtype}[] get-tuple-element(%q), index=0
  {condition}
}}

ENTRY %main (a: f32[4]) -> f32[4] {{
  %a = f32[4]{{0}} parameter(0)
  %unknown = {dtype}[] parameter(1)
  {start}
  %t = {kind} tuple(%start, %a{carried})
  ROOT %loop = {kind} while(%t), condition=%condition, body=%body{config}
}}
"""


def trips(text: str) -> int | None:
    module = module_of(text)
    return trip_count(module, module.entry, module.entry.root)


def affine(start: int, step: int, limit: int, direction: str, *, mirrored: bool = False, dtype: str = "s32") -> str:
    """Return ``while start DIRECTION limit: start += step``. If mirrored, the limit is on the left."""
    sides = "%limit, %c" if mirrored else "%c, %limit"
    return loop_text(
        f"%start = {dtype}[] constant({start})",
        f"%one = {dtype}[] constant({step})\n  %next = {dtype}[] add(%i, %one)",
        f"%limit = {dtype}[] constant({limit})\n  ROOT %less = pred[] compare({sides}), direction={direction}",
        dtype,
    )
