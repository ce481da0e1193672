"""``hloinspect maxtext``: the static answer for MaxText's train step."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import emit, width
from hloinspect.cli.options import (
    Progress,
    RuleOptions,
    compiling_options,
    gather_compiling,
    gather_judging,
    judging_options,
    output_options,
    rule_options,
)
from hloinspect.cli.plan import EXIT_NONE, emit_plan, rates, split
from hloinspect.errors import UsageError

if TYPE_CHECKING:
    from hloinspect.analyze.options import JudgeOptions
    from hloinspect.options import CompileOptions
    from hloinspect.plan.model import Plan

EPILOG = """\b
Examples:
  hloinspect maxtext --target gb200 --topology 2x16x4 -- base.yml model_name=llama3.1-405b \\
      ici_fsdp_parallelism=128 per_device_batch_size=1 max_target_length=8192 attention=cudnn_flash_jax \\
      remat_policy=custom decoder_layer_input=offload query_proj=offload
  hloinspect maxtext --target gb200 --topology 2x16x4 --compare remat,save -- base.yml ...
  hloinspect maxtext --target gb200 --topology 2x16x4 --plan query_proj=remat,offload,device -- base.yml ...
  hloinspect maxtext --target v5p --topology 4x4x4 --link 16GB/s -- base.yml model_name=llama2-70b ...

Exit codes: 0 good, 2 wrong use or a configuration that MaxText refuses, 3 not enough evidence."""


@click.command("maxtext", epilog=EPILOG)
@click.argument("arguments", nargs=-1, required=True, metavar="-- CONFIG [KEY=VALUE]...")
@judging_options
@compiling_options
@click.option(
    "--compare", metavar="HOW", default="", help="Compile it also with the tensors remat, save, or remat,save."
)
@click.option(
    "--plan", "vary", multiple=True, metavar="KEY=A,B", help="Plan over a key's values (`hloinspect plan`); repeatable."
)
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path), help="Keep what compiling writes in DIR.")
@click.option("--all", "show_all", is_flag=True, help="Show every transfer and every finding.")
@rule_options
@output_options
@gather_compiling
@gather_judging
def command(
    arguments: tuple[str, ...],
    compiling: CompileOptions,
    judging: JudgeOptions,
    compare: str,
    vary: tuple[str, ...],
    show_all: bool,
    rules: RuleOptions,
    style: str,
    output: str | None,
) -> int:
    """Compile the train step of an installed MaxText for GPUs or TPUs that are not there, and inspect it.

    CONFIG and KEY=VALUE are MaxText's own: base.yml is the one it installs. Its devices, checkpoints, data and
    directories are taken care of. The answer says what is offloaded, whether device and host have the memory, and
    then what `hloinspect inspect` says. --compare puts the same step beside it with the offloaded tensors recomputed
    (remat) or kept on the device (save). --plan compiles it with every combination of the values of its keys, and
    compares them (policy and flags, too, may vary as in `hloinspect plan`).
    """
    if vary:
        if compare:
            raise UsageError("--plan and --compare do not go together: write --plan policy=own,save,remat")
        plan = plan_maxtext(arguments, vary, compiling, judging)
        emit_plan(plan, style, output, show_all)
        return 0 if plan.best is not None else EXIT_NONE
    from hloinspect.cli.inspect import exit_code
    from hloinspect.maxtext.summary import inspect_maxtext

    progress = Progress()
    try:
        answer = inspect_maxtext(
            arguments,
            compiling,
            replace(judging, rules=rules.choice()),
            compare=[word.strip() for word in compare.split(",") if word.strip()],
            on_progress=progress,
        )
    finally:
        progress.clear()
    if style == "json":
        from hloinspect.render.data.maxtext_json import maxtext_json

        emit(maxtext_json(answer), output)
    else:
        from hloinspect.render.terminal.maxtext_text import maxtext_text

        emit(maxtext_text(answer, width(sys.stdout), show_all), output)
    return exit_code(answer.variants[0].report)


def plan_maxtext(
    arguments: tuple[str, ...], vary: tuple[str, ...], compiling: CompileOptions, judging: JudgeOptions
) -> Plan:
    """Return the plan over MaxText's keys."""
    from hloinspect.maxtext.summary import check_installed, target_for_maxtext
    from hloinspect.plan.verb import PlanRequest, make_plan

    targets = split(str(judging.target or ""))
    for name in targets:
        target_for_maxtext(name)
    check_installed()
    progress = Progress()
    request = PlanRequest(
        maxtext=arguments,
        vary=vary,
        targets=tuple(targets),
        links=tuple(rates([judging.link] if judging.link else [])),
        compiling=compiling,
    )
    try:
        return make_plan(request, progress)
    finally:
        progress.clear()
