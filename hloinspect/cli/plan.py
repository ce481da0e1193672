"""``hloinspect plan``: what-if sweeps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import emit, width
from hloinspect.cli.numbers import DEVICES, JOBS, SECONDS, TOKENS, TOPOLOGY
from hloinspect.cli.options import Progress, compiling_options, gather_compiling
from hloinspect.errors import UsageError

if TYPE_CHECKING:
    from hloinspect.options import CompileOptions
    from hloinspect.plan.judge import WritePage
    from hloinspect.plan.model import Plan

EPILOG = """\b
Examples:
  hloinspect plan examples/dense.py:train --target gb200 --vary batch=4,8 --vary policy=save,remat,offload:hid
  hloinspect plan train.py:step --target gb200,h100 --vary flags=default,pipelined,no-lhs
  hloinspect plan offload=a.hlo.gz remat=b.hlo.gz --target gb200 --link 225GB/s,450GB/s

NAME of --vary is a keyword argument of the step, or policy, or flags. A policy is save, remat, own (the step's),
offload:NAME+NAME, save:NAME+NAME or offload:NAME/save:NAME, of checkpoint names. Sets of flags: default, pipelined,
pipelined-collectives, double-buffered, lhs, no-lhs, lhs-tshirt, cublas, kernel-slices, no-xla-remat, o1, with + between
for several; others and policies can be named in [tool.hloinspect.plan.flags] and [tool.hloinspect.plan.policies] of
pyproject.toml.

Exit codes: 0 a point is good, 1 none is, 2 wrong use or unreadable input."""

EXIT_NONE = 1


@click.command("plan", epilog=EPILOG)
@click.argument("sources", nargs=-1, required=True, metavar="STEP | [LABEL=]INPUT...")
@click.option("--vary", multiple=True, metavar="NAME=A,B", help="What varies, and its values; repeatable.")
@click.option("--point", "points", multiple=True, metavar="NAME=A,NAME=B", help="One point more; repeatable.")
@click.option("--search", is_flag=True, help="Change one thing at a time for as long as the step gets faster.")
@click.option("--time", "time_text", metavar="TIME", default="10m", show_default=True, help="What --search may take.")
@click.option("--tensors", is_flag=True, help="Show for each offloaded tensor what it gains: two compilations each.")
@click.option("--target", "targets", metavar="NAME,NAME", help="Hardware to compile and judge for.")
@click.option("--devices", type=DEVICES, metavar="N", help="Number of devices the step runs on.")
@click.option(
    "--topology", type=TOPOLOGY, metavar="PxHxD", help="NVLink domains x hosts x devices a host, such as 2x16x4."
)
@click.option("--xla-flag", "xla_flags", multiple=True, metavar="FLAG", help="XLA flag for every point; repeatable.")
@click.option(
    "--link", "links", multiple=True, metavar="RATE,RATE", help="Host link; with several, every point under each."
)
@click.option(
    "--also", metavar="NAME,NAME", default="", help="Targets to judge for too, from what is compiled for --target."
)
@click.option(
    "--memory", metavar="PERCENT", default="100%", show_default=True, help="Share of device memory for the step."
)
@click.option("--samples", metavar="N|AXIS", help="Samples a step, or the axis that says it. Default: batch.")
@click.option("--tokens", type=TOKENS, metavar="N", help="Tokens a sample.")
@click.option("--jobs", type=JOBS, metavar="N", help="Compile so many at once. Default: by cores and memory.")
@click.option(
    "--keep", metavar="DIR", type=click.Path(path_type=Path), help="Keep what compiling writes, a folder a point."
)
@compiling_options
@click.option("--all", "show_all", is_flag=True, help="Show every point.")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Compile on the workers of a Dask cluster, such as tcp://host:8786."
)
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "csv", "html"]), default="text", show_default=True
)
@click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of standard output.")
@gather_compiling
def command(
    sources: tuple[str, ...],
    vary: tuple[str, ...],
    points: tuple[str, ...],
    search: bool,
    time_text: str,
    tensors: bool,
    targets: str | None,
    compiling: CompileOptions,
    links: tuple[str, ...],
    also: str,
    memory: str,
    samples: str | None,
    tokens: float | None,
    jobs: int | None,
    show_all: bool,
    scheduler: str | None,
    style: str,
    output: str | None,
) -> int:
    """Try policies, sizes and flags on STEP without the hardware, and say what fits and what is the fastest.

    Every combination of what varies is compiled for the target, without a device, and its step predicted. The table
    says of each point whether it fits, how long a step takes and waits, what it computes again, and what it moves; the
    front are the points that no other beats in both speed and device memory. Of INPUTs that are compiled already
    (modules, dumps) it makes the same table without compiling.
    """
    from hloinspect.plan.verb import PlanRequest, make_plan

    number, axis = samples_of(samples)
    request = PlanRequest(
        sources=sources,
        vary=vary,
        points=points,
        tensors=tensors or not (vary or points or search),
        search_s=seconds_of(time_text) if search else None,
        targets=tuple(split(targets or "")),
        links=tuple(rates(links)),
        also=tuple(split(also)),
        compiling=compiling,
        memory_share=share_of(memory),
        samples=number,
        samples_axis=axis,
        tokens=tokens,
        jobs=jobs,
        scheduler=scheduler,
        pages=_pages(style, output),
    )
    progress = Progress()
    try:
        plan = make_plan(request, progress)
    finally:
        progress.clear()
    emit_plan(plan, style, output, show_all)
    return 0 if plan.best is not None else EXIT_NONE


def emit_plan(plan: Plan, style: str, output: str | None, show_all: bool) -> None:
    """Write a plan as JSON, CSV, HTML or text."""
    if style == "json":
        emit(plan.to_json(), output)
    elif style == "html":
        from hloinspect.render.page.plan_html import plan_html

        emit(plan_html(plan, page_links(plan, pages_of(style, output))), output)
    elif style == "csv":
        from hloinspect.render.data.plan_csv import plan_csv

        emit(plan_csv(plan), output)
    else:
        from hloinspect.render.terminal.plan_text import plan_text

        emit(plan_text(plan, width(sys.stdout), show_all), output)


def _pages(style: str, output: str | None) -> WritePage | None:
    folder = pages_of(style, output)
    if folder is None:
        return None
    from hloinspect.render.page.point_pages import write_pages_to

    return write_pages_to(folder)


def pages_of(style: str, output: str | None) -> Path | None:
    """Return the folder for the reports of single points beside a page: ``plan-points`` for ``plan.html``. Raises
    UsageError for a page without a file."""
    if style != "html":
        return None
    if output is None or output == "-":
        raise UsageError("--format html needs a file: -o plan.html")
    return Path(output).with_name(f"{Path(output).stem}-points")


def page_links(plan: Plan, folder: Path | None) -> dict[int, str]:
    """Return where the report of each point is, seen from the page."""
    if folder is None:
        return {}
    names = {point.number: f"point{point.number}.html" for point in plan.points if point.step is not None}
    return {number: f"{folder.name}/{name}" for number, name in names.items() if (folder / name).is_file()}


def split(text: str) -> list[str]:
    """Return the parts between commas, without what is empty."""
    return [part.strip() for part in text.split(",") if part.strip()]


def rates(texts: Sequence[str]) -> list[str]:
    """Return ``225GB/s,450GB/s`` as two links; ``d2h=170GB/s,h2d=415GB/s`` is one."""
    return list(dict.fromkeys(part for text in texts for part in ([text.strip()] if "=" in text else split(text))))


def share_of(text: str) -> float:
    """Return ``90%`` as 0.9. Raises UsageError."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"--memory {text}: write a share of the device's memory, such as 90%")
    return share


def seconds_of(text: str) -> float:
    """Return ``10m``, ``90s`` or ``1h`` in seconds. Raises UsageError."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        seconds = float(text[:-1]) * units[text[-1:]]
    except (KeyError, ValueError):
        seconds = 0.0
    if not SECONDS.least <= seconds <= SECONDS.most:
        raise UsageError(f"--time {text}: write a time such as 10m, 90s or 1h")
    return seconds


def samples_of(text: str | None) -> tuple[float | None, str | None]:
    """Read ``--samples 64`` as a number, ``--samples batch`` as the axis that has it. Raises UsageError."""
    if text is None:
        return None, None
    try:
        number = float(text)
    except ValueError:
        return None, text
    if not TOKENS.least <= number <= TOKENS.most:
        raise UsageError(f"--samples {text}: write how many samples a step has")
    return number, None
