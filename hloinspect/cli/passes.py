"""``hloinspect passes``: what each compiler pass did to the offload."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import emit, width
from hloinspect.cli.numbers import DEVICES, TOPOLOGY
from hloinspect.cli.options import Progress, gather_compiling, output_options, production_options

if TYPE_CHECKING:
    from hloinspect.options import CompileOptions

EPILOG = """\b
A directory needs no jax. XLA writes one with
  XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=.*'

\b
Examples:
  hloinspect passes train.py:step --target gb200
  hloinspect passes dump/ --pass host-offloader
  hloinspect passes dump/ --follow dynamic-slice-start.1"""


@click.command("passes", epilog=EPILOG)
@click.argument("source", metavar="STEP|DUMPDIR")
@click.option("--target", metavar="NAME", help="Hardware to compile a step for: a name or a TOML file.")
@click.option("--devices", type=DEVICES, metavar="N", help="Number of devices the step runs on.")
@click.option(
    "--topology", type=TOPOLOGY, metavar="PxHxD", help="NVLink domains x hosts x devices a host, such as 2x16x4."
)
@click.option("--xla-flag", "xla_flags", multiple=True, metavar="FLAG", help="XLA flag for compiling; repeatable.")
@production_options
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the texts of a step in DIR.")
@click.option("--module", metavar="NAME", help="The module of a dump: its key, name or number.")
@click.option(
    "--pass", "shown", metavar="NAME", help="Show what a pass (PASS, PIPELINE/PASS, a text's number) changed."
)
@click.option("--follow", "followed", metavar="NAME", help="Follow a transfer of the last text back to its annotation.")
@click.option("--steps", is_flag=True, help="Read the texts from inside passes too.")
@click.option("-v", "--verbose", is_flag=True, help="With --pass: whole lines, with metadata, however many.")
@output_options
@gather_compiling
def command(
    source: str,
    target: str | None,
    compiling: CompileOptions,
    shown: str | None,
    followed: str | None,
    steps: bool,
    verbose: bool,
    style: str,
    output: str | None,
) -> None:
    """Say what each compiler pass did to the offload: where annotations became copies, were dropped, made asynchronous
    or became host compute.

    Reads the texts that XLA writes after its passes: of a directory, or of a step that is compiled for it.
    """
    from hloinspect.errors import UsageError
    from hloinspect.passes.dump import find_passes
    from hloinspect.passes.ledger import ledger_of

    if shown is not None and followed is not None:
        raise UsageError("--pass and --follow are two questions: give one")
    progress = Progress()
    try:
        with _texts(source, target, compiling, progress) as (directory, head):
            dump = find_passes(directory, compiling.module, steps=steps)
            ledger = ledger_of(dump, progress)
            differences = trail = None
            if shown is not None:
                from hloinspect.passes.difference import find_differences

                differences = find_differences(ledger, shown, verbose)
            if followed is not None:
                from hloinspect.passes.follow import follow

                trail = follow(ledger, followed)
    finally:
        progress.clear()
    if style == "json":
        from hloinspect.render.data.passes_json import to_json

        emit(to_json(ledger, source, differences, trail), output)
        return
    from hloinspect.render.terminal.passes_text import differences_text, ledger_text, trail_text

    columns = width(sys.stdout)
    if differences is not None and shown is not None:
        emit(differences_text(differences, shown, whole=verbose), output)
    else:
        emit(ledger_text(ledger, head, columns) if trail is None else trail_text(trail, columns), output)


@contextlib.contextmanager
def _texts(
    source: str, target: str | None, compiling: CompileOptions, progress: Progress
) -> Iterator[tuple[Path, str]]:
    """Give the directory that holds the texts, and words about where they come from. Those of a step are removed
    afterwards unless they are to be kept."""
    from hloinspect.errors import InputError, UsageError
    from hloinspect.inputs.classify import STEP, classify

    with contextlib.suppress(OSError, ValueError):  # what is wrong with the name, classify says
        if source and Path(source).is_dir():
            if useless := _options_of_a_step(target, compiling):
                raise UsageError(
                    f"{useless[0]} is for a step: {source} is a directory, of texts that are there already"
                )
            yield Path(source), f"in {source}"
            return
    if classify(source).kind != STEP:
        raise InputError(f"{source}: expected a directory with texts of passes, or a step such as train.py:step")
    if target is None:
        raise UsageError("a step is compiled for a target: give --target (see `hloinspect targets`)")
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hloinspect-passes-")))
        texts = scratch / "texts" if compiling.keep is None else _empty(compiling.keep)
        yield texts, _compile(source, target, _dumping(compiling, texts), scratch / "result", progress)


def _options_of_a_step(target: str | None, compiling: CompileOptions) -> list[str]:
    """Return the options that are given and have no meaning for a directory."""
    given = {
        "--target": target,
        "--devices": compiling.devices,
        "--topology": compiling.topology,
        "--keep": compiling.keep,
        compiling.production.option: compiling.production or None,
    }
    return [name for name, value in given.items() if value is not None]


def _dumping(compiling: CompileOptions, texts: Path) -> CompileOptions:
    """Return the options with the flags that make XLA write its texts into a directory."""
    from hloinspect.passes.dump import FLAGS

    return replace(compiling, xla_flags=(*compiling.xla_flags, f"xla_dump_to={texts.absolute()}", *FLAGS))


def _empty(directory: Path) -> Path:
    from hloinspect.errors import UsageError

    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"--keep {directory}: expected an empty directory, or none: texts of two runs do not mix")
    except OSError as error:
        raise UsageError(f"--keep {directory}: {error.strerror or error}") from None
    return directory


def _compile(step: str, target_name: str, compiling: CompileOptions, result: Path, progress: Progress) -> str:
    from hloinspect.compile.launch import compile_named
    from hloinspect.errors import CompileError
    from hloinspect.hardware import load_target

    try:
        made = compile_named(step, load_target(target_name), compiling, out=result, on_progress=progress)
    except CompileError as error:
        progress.clear()
        from hloinspect.compile.known_errors import explained

        raise explained(error) from None
    manifest = made.manifest
    return f"compiled for {manifest.devices} x {manifest.target}, jax {manifest.versions['jax']}"
