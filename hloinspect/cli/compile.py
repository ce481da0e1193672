"""``hloinspect compile``: the files of a compilation without the accelerator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloinspect.cli.numbers import DEVICES, SECONDS, TOPOLOGY
from hloinspect.cli.options import compiling_options, gather_compiling
from hloinspect.errors import printable

if TYPE_CHECKING:
    from hloinspect.inputs.manifest import CompileResult
    from hloinspect.options import CompileOptions

EPILOG = """\b
A step is a function without required arguments that returns jax.jit(...).lower(...), or the
tuple (jitted function, arguments...). While it runs, jax.devices() are the target's.

\b
Examples:
  hloinspect compile train.py:step --target gb200
  hloinspect compile mypackage.train:step --target h100 --devices 16 -o out/
  hloinspect compile train.py:step --target gb200 --topology 2x16x4
  hloinspect compile train.py:step --target gb200 \\
      --xla-flag xla_gpu_enable_triton_gemm=false"""


@click.command("compile", epilog=EPILOG)
@click.argument("step")
@click.option("--target", "target_name", required=True, help="Hardware to compile for: a name or a TOML file.")
@click.option("--devices", type=DEVICES, help="How many devices. Default: 1.")
@click.option(
    "--topology", type=TOPOLOGY, help="GPU: NVLink domains x hosts x devices per host, e.g. 2x16x4. TPU: e.g. v6e:4x4."
)
@click.option(
    "--xla-flag", "xla_flags", multiple=True, metavar="FLAG", help="An XLA flag, name=value. May be repeated."
)
@compiling_options
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Directory for the files. Default: <function>-<target>."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--timeout", type=SECONDS, default=1800.0, show_default=True, help="Seconds.")
@click.option("-v", "--verbose", is_flag=True, help="When it fails, print the whole traceback too.")
@gather_compiling
def command(
    step: str, target_name: str, compiling: CompileOptions, output: Path | None, form: str, verbose: bool
) -> None:
    """Compile STEP (file.py:function or package.module:function) for a target that is not there.

    Writes the optimized module as text and proto, the StableHLO, the thunk sequence (GPU) and a manifest.json with
    versions, memory and times. The manifest is written last: without it a directory is not a result.
    """
    from hloinspect.compile.launch import compile_named
    from hloinspect.errors import CompileError
    from hloinspect.hardware import load_target

    target = load_target(target_name)
    out = output or Path(f"{step.rpartition(':')[2]}-{target.name}")
    progress = Progress()
    try:
        result = compile_named(step, target, compiling, out=out, on_progress=progress.show)
    except CompileError as error:
        progress.clear()
        if verbose and error.detail:
            click.echo(error.detail.rstrip(), err=True)
        from hloinspect.compile.known_errors import explained

        raise explained(error) from None
    finally:
        progress.clear()
    click.echo(as_json(result) if form == "json" else as_text(result))


class Progress:
    """A line on standard error that is written over; nothing where that is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[K{printable(text)} ...", err=True, nl=False)

    def clear(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def as_text(result: CompileResult) -> str:
    """Return what a compilation has written, as text."""
    manifest = result.manifest
    memory, seconds = manifest.memory, manifest.seconds
    rows = [
        f"{manifest.module_name}   compiled for {manifest.devices} x {manifest.target} ({manifest.topology}) "
        f"without a device, jax {manifest.versions['jax']}",
        "",
        f"  module        {result.module_text}",
        f"  proto         {result.module_proto}",
        f"  StableHLO     {result.stablehlo}",
        *([f"  thunks        {result.thunk_sequence}"] if result.thunk_sequence else []),
        "",
        f"  device        arguments {_size(memory, 'argument')}, temporary {_size(memory, 'temp')} (per device)",
        f"  pinned host   arguments {_size(memory, 'host_argument')}, temporary {_size(memory, 'host_temp')}",
        f"  time          import {seconds['import']:.1f} s, trace and lower {seconds['trace_and_lower']:.1f} s, "
        f"compile {seconds['compile']:.1f} s" + (" (found in the cache)" if manifest.cached else ""),
        *(f"  note          {note}" for note in manifest.notes),
    ]
    return "\n".join(rows)


def as_json(result: CompileResult) -> str:
    """Return the manifest and the files of a compilation as JSON."""
    import json
    from dataclasses import asdict

    files = {
        "directory": str(result.directory),
        "module_text": str(result.module_text),
        "module_proto": str(result.module_proto),
        "stablehlo": str(result.stablehlo),
        "thunk_sequence": str(result.thunk_sequence) if result.thunk_sequence else None,
    }
    return json.dumps({**asdict(result.manifest), "files": files}, indent=1)


def _size(memory: dict[str, int], name: str) -> str:
    size_bytes = memory.get(f"{name}_size_in_bytes", 0)
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**29 else f"{size_bytes / 2**20:.1f} MiB"
