"""A step after each of XLA's passes, small enough to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

KEY = "module_0007.jit_f"
FRAMES = """FileNames
1 "train.py"
FunctionNames
1 "layer"
FileLocations
1 {file_name_id=1 function_name_id=1 line=41 end_line=41 column=8 end_column=12}
StackFrames
1 {file_location_id=1 parent_frame_id=1}
"""
METADATA = ', metadata={op_name="jit(f)/device_put" stack_frame_id=1}'


def module(*lines: str, result: str = "out", more: str = "") -> str:
    """Return a module whose entry computes ``act``, then ``lines``, then ``out`` from ``back``."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"""HloModule jit_f, entry_computation_layout={{(f32[1024]{{0}})->f32[1024]{{0}}}}

{FRAMES}
{more}
ENTRY %main (x: f32[1024]) -> f32[1024] {{
  %x = f32[1024]{{0}} parameter(0)
  %act = f32[1024]{{0}} tanh(%x)
{body}
  ROOT %{result} = f32[1024]{{0}} add(%back, %x)
}}
"""


def annotated() -> str:
    call = 'custom_call_target="annotate_device_placement", custom_call_has_side_effect=true'
    return module(
        f'%put = f32[1024]{{0}} custom-call(%act), {call}, frontend_attributes={{_xla_buffer_placement="pinned_host"}}'
        f"{METADATA}",
        f'%back = f32[1024]{{0}} custom-call(%put), {call}, frontend_attributes={{_xla_buffer_placement="device"}}'
        f"{METADATA}",
    )


def marked(to_host: str = "mark", back: str = "back") -> str:
    return module(
        f'%{to_host} = f32[1024]{{0}} custom-call(%act), custom_call_target="MoveToHost"',
        f'%{back} = f32[1024]{{0}} custom-call(%{to_host}), custom_call_target="MoveToDevice"',
    )


def copied(to_host: str = "copy.1") -> str:
    return module(f"%{to_host} = f32[1024]{{0:S(5)}} copy(%act)", f"%back = f32[1024]{{0}} copy(%{to_host})")


def started(to_host: str = "copy-start") -> str:
    return module(
        f"%{to_host} = (f32[1024]{{0:S(5)}}, f32[1024]{{0}}, u32[]) copy-start(%act)",
        f"%copy-done = f32[1024]{{0:S(5)}} copy-done(%{to_host})",
        "%copy-start.1 = (f32[1024]{0}, f32[1024]{0:S(5)}, u32[]) copy-start(%copy-done)",
        "%back = f32[1024]{0} copy-done(%copy-start.1)",
    )


def without() -> str:
    return module("%back = f32[1024]{0} negate(%act)")


GOOD = {
    "0000.pre.after_pipeline-start.before_convert-placements": annotated(),
    "0001.pre.after_convert-placements.before_dce": marked(),
    "0002.pre.after_dce.before_pipeline-end": marked(),
    "0003.post.after_pipeline-start.before_host-offloader": marked(),
    "0004.post.after_host-offloader.before_cse": copied(),
    "0005.post.after_asyncifier.before_rename": started(),
    "0006.post.after_rename.before_pipeline-end": started("copy-start.7"),
}
"""Texts of a correct offload, by their names."""

DROPPED = {
    **{name: GOOD[name] for name in list(GOOD)[:5]},
    "0005.post.after_algsimp.before_pipeline-end": without(),
}
"""The same texts, and a pass that removes both copies."""


def write(folder: Path, texts: Mapping[str, str], key: str = KEY, ends: bool = True) -> Path:
    """Write the texts as files of a dump, with the module before and after all passes. Return the directory."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{key}.{name}.txt").write_text(text)
    if ends:
        first, *_, last = texts.values()
        (folder / f"{key}.before_optimizations.txt").write_text(first)
        (folder / f"{key}.sm_9.0a_gpu_after_optimizations.txt").write_text(last)
    return folder
