"""``hloinspect trace``: the measured answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import TextForm, emit_report
from hloinspect.cli.numbers import DEVICES, JOBS, TOPOLOGY
from hloinspect.cli.options import (
    Progress,
    RuleOptions,
    gather_compiling,
    gather_judging,
    gather_tracing,
    hlo_option,
    report_options,
    rule_options,
)
from hloinspect.cli.timelines import STYLES, emit_timeline, measured_picture

if TYPE_CHECKING:
    from hloinspect.analyze.options import JudgeOptions, TraceOptions
    from hloinspect.options import CompileOptions

EPILOG = """\b
Examples:
  hloinspect trace profile/
  hloinspect trace host.xplane.pb --link 50GB/s
  hloinspect trace report.sqlite --hlo dump
  hloinspect trace profile/ --expect compiled/ --format json -o trace.json
  hloinspect trace gs://bucket/profile --jobs 8 --allow-broken

Exit codes: 0 answered, 2 wrong use or unreadable input, 3 not enough evidence to say."""

EXIT_UNKNOWN = 3


@click.command("trace", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.argument("input", metavar="INPUT")
@click.option(
    "--target",
    metavar="NAME",
    help="Hardware to predict for too (`hloinspect targets`), or none. Default: that of the profile's device.",
)
@click.option("--link", metavar="RATE", help="Host link instead of the target's: 225GB/s, or d2h=170GB/s,h2d=415GB/s.")
@click.option("--devices", type=DEVICES, metavar="N", help="Number of devices the step runs on.")
@click.option(
    "--topology", type=TOPOLOGY, metavar="PxHxD", help="NVLink domains x hosts x devices a host, such as 2x16x4."
)
@click.option(
    "--expect",
    metavar="MODULE",
    help="Say whether this is what ran: a directory of `hloinspect compile`, its manifest, or an HLO file.",
)
@hlo_option
@click.option("--jobs", type=JOBS, metavar="N", help="Processes, one file each (many hosts).")
@click.option("--scheduler", metavar="ADDRESS", help="Measure the files on the Dask cluster of tcp://HOST:PORT.")
@click.option("--allow-broken", is_flag=True, help="Answer without files that cannot be read: no exit code 3 for them.")
@click.option("--all", "show_all", is_flag=True, help="Show every transfer, host, device and step that was set aside.")
@rule_options
@report_options
@gather_compiling
@gather_judging
@gather_tracing
def command(
    input: str,
    compiling: CompileOptions,
    judging: JudgeOptions,
    tracing: TraceOptions,
    rules: RuleOptions,
    show_all: bool,
    style: str,
    output: str | None,
    timeline: bool | None,
) -> int:
    """Say how long each host transfer of a profiled step made the device wait.

    INPUT is an .xplane.pb, a profile directory of jax.profiler (its newest run, all hosts), what Nsight Systems wrote
    (an export to SQLite, or a report where nsys is installed), or an archive of nsys-jax, here or at a URL (gs://,
    s3://). Transfers are found in the module that the trace carries, or that --hlo has, and timed by the trace. The
    prediction for the profile's device stands beside. Nothing is written beside the profile.
    """
    from hloinspect.analyze.trace import trace_input
    from hloinspect.kinds import UNKNOWN
    from hloinspect.render.terminal.measured_text import to_text

    judging = replace(judging, rules=rules.choice())
    progress = Progress(after_s=2.0)
    try:
        found = trace_input(input, compiling, judging, tracing, progress)
    finally:
        progress.clear()
    report = found.report
    if style in STYLES:
        emit_timeline(found, style, output)
    else:
        emit_report(report, style, output, TextForm(to_text, measured_picture(found), show_all, timeline))
    doubtful = any(unknown.affects in ("time", "transfers") for unknown in report.unknown)
    unsure = any(transfer.verdict == UNKNOWN for transfer in report.transfers)
    return EXIT_UNKNOWN if doubtful or unsure else 0
