"""``hloinspect maxtext``: the static answer for MaxText's train step."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hloinspect.cli.console import emit, width
from hloinspect.cli.options import Progress, judging_options, output_options, rule_options

EPILOG = """\b
Examples:
  hloinspect maxtext --target gb200 --topology 2x16x4 -- base.yml model_name=llama3.1-405b \\
      ici_fsdp_parallelism=128 per_device_batch_size=1 max_target_length=8192 attention=cudnn_flash_jax \\
      remat_policy=custom decoder_layer_input=offload query_proj=offload
  hloinspect maxtext --target gb200 --topology 2x16x4 --compare remat,save -- base.yml ...

Exit codes: 0 good, 2 wrong use or a configuration that MaxText refuses, 3 not enough evidence."""


@click.command("maxtext", epilog=EPILOG)
@click.argument("arguments", nargs=-1, required=True, metavar="-- CONFIG [KEY=VALUE]...")
@judging_options
@click.option(
    "--compare", metavar="HOW", default="", help="Compile it also with the tensors remat, save, or remat,save."
)
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path), help="Keep what compiling writes in DIR.")
@click.option("--all", "show_all", is_flag=True, help="Show every transfer and every finding.")
@rule_options
@output_options
def command(
    arguments: tuple[str, ...],
    target: str | None,
    link: str | None,
    devices: int | None,
    topology: str | None,
    xla_flags: tuple[str, ...],
    compare: str,
    keep: Path | None,
    show_all: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    severity: tuple[str, ...],
    style: str,
    output: str | None,
) -> int:
    """Compile the train step of an installed MaxText for GPUs that are not there, and inspect it.

    CONFIG and KEY=VALUE are MaxText's own: base.yml is the one it installs. Its devices, checkpoints, data and
    directories are taken care of. The answer says what is offloaded, whether device and host have the memory, and
    then what `hloinspect inspect` says. --compare puts the same step beside it with the offloaded tensors recomputed
    (remat) or kept on the device (save).
    """
    from hloinspect.cli.inspect import exit_code
    from hloinspect.config import load_choice, with_options
    from hloinspect.maxtext import inspect_maxtext

    progress = Progress()
    try:
        answer = inspect_maxtext(
            arguments,
            target=target,
            link=link,
            devices=devices,
            topology=topology,
            xla_flags=xla_flags,
            compare=[word.strip() for word in compare.split(",") if word.strip()],
            keep=keep,
            rules=with_options(load_choice(Path.cwd()), select, ignore, severity),
            on_progress=progress,
        )
    finally:
        progress.clear()
    if style == "json":
        from hloinspect.report.maxtext_json import maxtext_json

        emit(maxtext_json(answer), output)
    else:
        from hloinspect.report.maxtext_text import maxtext_text

        emit(maxtext_text(answer, width(sys.stdout), show_all), output)
    return exit_code(answer.variants[0].report)
