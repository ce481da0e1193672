"""``hloinspect check``: the gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import emit
from hloinspect.cli.options import (
    Progress,
    RuleOptions,
    compiling_options,
    gather_compiling,
    gather_judging,
    hlo_option,
    judging_options,
    refuse_hlo,
    rule_options,
)
from hloinspect.errors import CompileError, HloInspectError, UsageError, printable
from hloinspect.options import CompileOptions

if TYPE_CHECKING:
    from hloinspect.analyze.options import FollowMemory, JudgeOptions
    from hloinspect.gate.baseline import Baseline
    from hloinspect.gate.config import GateConfig, GatedStep
    from hloinspect.gate.gate import Checked, Unread
    from hloinspect.report.schema import Report
    from hloinspect.rules.choice import Choice

EPILOG = """\b
Examples:
  hloinspect check train.py:step --target gb200 --budget stall=2%
  hloinspect check step.hlo --target h100 --budget stall.h2d=0.5ms --budget findings.HLO1=0
  hloinspect check train.py:step --target gb200 --baseline offload.json --update-baseline
  hloinspect check train.py:step --target gb200 --baseline offload.json --report sarif=check.sarif
  hloinspect check          (the whole gate of the project: [[tool.hloinspect.step]] in pyproject.toml)

METRIC=LIMIT is a limit, METRIC+TOLERANCE so much over the baseline. Metrics: step, stall, exposed (.d2h, .h2d; % of the
step, us, ms, s), memory.device, memory.host (%, GiB, GB), bytes, count (.d2h, .exposed, ...), lost, findings (.error,
.HLO101). With --baseline and no --budget: lost=0 stall+5% memory.device+5% memory.host+5% findings.error+0.
Whatever the budgets are, wrong values (HLO301) and a step that does not fit (HLO209) fail; --ignore takes one out.
It has no effect on HLO308: a step that the compiler refuses cannot be judged.
Exit codes: 0 all within, 1 one is over, 2 wrong use, unreadable input, or a step that the compiler refuses (of
several INPUTs the others are judged all the same), 3 not enough evidence (--allow-unknown makes
that a pass) or nothing in the baseline to compare with."""

EXIT_CODES = {"passed": 0, "failed": 1, "error": 2, "unknown": 3}
SHOW_FINDINGS = frozenset({"sarif", "github"})
"""Formats that show findings, for which rules run though no budget needs any."""

_HOMES = {
    "text": "terminal.check_text",
    "json": "data.check_json",
    "junit": "ci.junit",
    "sarif": "ci.sarif",
    "github": "ci.github",
    "markdown": "ci.markdown",
}
FORMATS = tuple(_HOMES)


@click.command("check", epilog=EPILOG)
@click.argument("inputs", metavar="[INPUT]...", nargs=-1)
@judging_options
@compiling_options
@click.option("--module", metavar="NAME", help="Which module of a dump: its number, its name, or both.")
@click.option("--budget", "budgets", multiple=True, metavar="METRIC=LIMIT", help="What the step may cost; repeatable.")
@click.option(
    "--baseline", metavar="FILE", type=click.Path(path_type=Path), help="Compare with what FILE has recorded."
)
@click.option("--update-baseline", is_flag=True, help="Record the answer in the baseline, in place of the earlier one.")
@click.option("--as", "name", metavar="NAME", help="What the baseline calls the step. Default: INPUT as it is written.")
@click.option("--allow-unknown", is_flag=True, help="Pass where there is not enough evidence to say.")
@hlo_option
@rule_options
@click.option(
    "--report", "reports", multiple=True, metavar="FORMAT=FILE", help="Write another format to FILE too; repeatable."
)
@click.option("--format", "style", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of standard output.")
@gather_compiling
@gather_judging
def command(
    inputs: tuple[str, ...],
    compiling: CompileOptions,
    judging: JudgeOptions,
    budgets: tuple[str, ...],
    baseline: Path | None,
    update_baseline: bool,
    name: str | None,
    allow_unknown: bool,
    hlo: tuple[str, ...],
    rules: RuleOptions,
    reports: tuple[str, ...],
    style: str,
    output: str | None,
) -> int:
    """Fail when host transfers cost a step more than its budget, or more than the baseline says.

    INPUT is what `hloinspect inspect` takes, or a profiler's trace; without one the steps of pyproject.toml are
    checked. Times are predicted, of a trace measured. What is not known is a failure of its own (exit code 3), never a
    pass.
    """
    from hloinspect.analyze.options import TraceOptions
    from hloinspect.gate.budget import parse_budget
    from hloinspect.gate.config import GatedStep, load_gate
    from hloinspect.gate.gate import overall
    from hloinspect.gate.sense import refuse_senseless

    refuse_hlo(hlo, inputs)
    limits = tuple(parse_budget(text) for text in budgets)  # before anything is compiled
    writers = [(style, output), *(_writer(text) for text in reports)]
    here = Path.cwd()
    config = load_gate(here)
    choice = rules.choice()
    baseline = baseline or (config.baseline if config else None)
    options = GatedStep("", name or "", compiling, judging, TraceOptions(hlo=hlo), limits)
    steps = _given(inputs, options, config, here) if inputs else _configured(config, options)
    _refuse_senseless(steps, baseline, update_baseline)
    for step in steps:
        refuse_senseless(step.budgets, choice)
    steps = _with_rules(steps, baseline, [style_of for style_of, _ in writers], choice)
    checks, unread = _run(steps, baseline, update_baseline, allow_unknown)
    for style_of, file in writers:
        emit(_reporter(style_of)(checks, allow_unknown, unread), file)
    return EXIT_CODES[overall(checks, allow_unknown, unread)]


def _given(inputs: Sequence[str], options: GatedStep, config: GateConfig | None, here: Path) -> list[GatedStep]:
    """Return the steps of the command line, with the budgets of pyproject.toml where none is given."""
    from hloinspect.gate.gate import name_of

    if options.name and len(inputs) > 1:
        raise UsageError(f"--as names one step, and there are {len(inputs)}")
    budgets = options.budgets or (config.budgets if config else ())
    if options.name:
        return [replace(options, source=inputs[0], budgets=budgets)]
    return [
        replace(options, source=text, name=name_of(text, here), named_after=text, budgets=budgets) for text in inputs
    ]


def _configured(config: GateConfig | None, options: GatedStep) -> list[GatedStep]:
    """Return the steps of pyproject.toml, with the command line's budgets in place of theirs where there are some."""
    if config is None or not config.steps:
        where = config.file if config else "pyproject.toml"
        raise UsageError(f"no INPUT was given, and {where} has no [[tool.hloinspect.step]]")
    cache = options.compiling.cache
    nothing = type(options)("", "", compiling=CompileOptions(cache=cache))
    if replace(options, budgets=()) != nothing:
        raise UsageError(f"no INPUT was given: how its steps are compiled stands in {config.file}")
    return [
        replace(step, compiling=replace(step.compiling, cache=cache), budgets=options.budgets or step.budgets)
        for step in config.steps
    ]


def _with_rules(
    steps: Sequence[GatedStep], baseline: Path | None, styles: Sequence[str], rules: Choice
) -> list[GatedStep]:
    """Return the steps with the rules to run, and whether to estimate memory.

    Neither is cheap, and a limit on time needs only those rules that fail every check. Whether a step fits costs
    nothing where XLA's own figure came with it.
    """
    from hloinspect.gate.blocking import OVER_REPORT
    from hloinspect.rules.blocking import TOO_LARGE

    requested = {budget.metric.partition(".")[0] for step in steps for budget in step.budgets}
    judges_memory = "memory" in requested or not all(step.budgets for step in steps)  # by default a baseline's does
    memory: FollowMemory = True if judges_memory else None
    chosen = rules
    if baseline is None and "findings" not in requested and not any(style in SHOW_FINDINGS for style in styles):
        looks_for_size = not rules.why_left_out(TOO_LARGE)
        chosen = rules.limited_to(OVER_REPORT)
        memory = memory or ("unassigned" if looks_for_size else False)
    return [replace(step, judging=replace(step.judging, rules=chosen, memory=memory)) for step in steps]


def _refuse_senseless(steps: Sequence[GatedStep], baseline: Path | None, update: bool) -> None:
    """Raise UsageError for what makes no sense, before anything is compiled."""
    if baseline is None:
        if update:
            raise UsageError("--update-baseline needs to know which: --baseline FILE, or baseline in pyproject.toml")
        for budget in (budget for step in steps for budget in step.budgets if budget.needs_baseline):
            raise UsageError(f"{budget.text} compares with a baseline: give --baseline FILE")
        if not all(step.budgets for step in steps):
            raise UsageError("a gate needs a limit: --budget stall=2%, or --baseline (see `hloinspect check --help`)")
    for step in steps if update else ():
        if step.named_after == "-":
            raise UsageError("standard input has no name to record it under: give --as NAME")
    seen: dict[tuple[str, str | None, int | None], GatedStep] = {}
    for step in steps:
        other = seen.setdefault((step.name, step.target, step.compiling.devices), step)
        if other is not step:
            raise UsageError(_same_name_text(other, step))


def _same_name_text(one: GatedStep, other: GatedStep) -> str:
    """Return what to say of two steps that a baseline would call the same, with what is different."""
    texts = [_option_texts(step) for step in (one, other)]
    differing = [(a, b) for a, b in zip(*texts, strict=True) if a != b]
    sides = [", ".join(pair[side] for pair in differing) for side in (0, 1)]
    between = f" ({sides[0]}; {sides[1]})" if differing else ""
    remedy = "give one of them a name of its own: name = in pyproject.toml, or --as NAME for one INPUT alone"
    return f"{one.name} is there twice for {one.target or 'no target'}{between}: {remedy}"


def _option_texts(step: GatedStep) -> list[str]:
    """Return the options by which two steps of one name may differ, a text each."""
    compiling = step.compiling
    named = {
        "module": compiling.module,
        "link": step.judging.link,
        "topology": compiling.topology,
        "xla_flags": " ".join(compiling.xla_flags),
    }
    shown = [f"{option} {value}" if value else f"no {option}" for option, value in named.items()]
    return [step.source, *shown, compiling.production.option or "nothing of the production run"]


def _run(
    steps: Sequence[GatedStep], path: Path | None, update: bool, allow_unknown: bool
) -> tuple[list[Checked], list[Unread]]:
    known: Baseline | None = None
    if path is not None:
        from hloinspect.gate.baseline import Baseline, load_baseline, update_baseline

        known = Baseline(path) if update and not path.exists() else load_baseline(path)
    reports, unread = _reports(steps)
    checks = _checks(reports, known)
    if not update or path is None or not _is_recordable(path, checks, unread, allow_unknown):
        return checks, unread
    named = {step.name for step, _ in reports if step.named_after is None}
    known = update_baseline(path, [checked.now for checked in checks], named)
    click.echo(printable(f"{path}: {len(checks)} of {len(known.entries)} entries recorded"), err=True)
    return _checks(reports, known), unread


def _checks(reports: Sequence[tuple[GatedStep, Report]], known: Baseline | None) -> list[Checked]:
    """Check each report against its budgets. Raises UsageError where two are one step to a baseline."""
    from hloinspect.gate.gate import check_report

    checks = [
        check_report(report, step.name, step.budgets, known, step.source, is_named=step.named_after is None)
        for step, report in reports
    ]
    seen: dict[tuple[str, str, int, str], GatedStep] = {}
    for (step, _), checked in zip(reports, checks, strict=True):
        other = seen.setdefault(checked.now.key, step)
        if other is not step and known is not None:
            raise UsageError(_same_name_text(other, step))
    return checks


def _is_recordable(path: Path, checks: Sequence[Checked], unread: Sequence[Unread], allow_unknown: bool) -> bool:
    """Return whether the answers may become a baseline, and say why not. Raises UsageError where one rests on unknown
    times."""
    from hloinspect.gate.gate import why_no_entry
    from hloinspect.gate.words import finding_text

    for checked in checks:
        if checked.blocked:
            reason = f"{checked.name} is no baseline: {finding_text(checked.blocked[0])}"
            click.echo(printable(f"{path} was not changed, since {reason}"), err=True)
            return False
    for checked in checks:
        if (reason := why_no_entry(checked)) and not allow_unknown:
            raise UsageError(f"{path} was not changed, since {checked.name} is no baseline: {reason}")
    if unread:
        click.echo(printable(f"{path} was not changed, since not all steps could be read"), err=True)
    return not unread


def _reports(steps: Sequence[GatedStep]) -> tuple[list[tuple[GatedStep, Report]], list[Unread]]:
    """Return the reports on all steps, and those that could not be compiled or read.

    One of several that cannot be read does not keep the others from being judged. Wrong use does, and so does the only
    one, unless its compiler refused it: that is an answer on the step.
    """
    from hloinspect.gate.gate import Unread, report_of

    progress = Progress()
    reports: list[tuple[GatedStep, Report]] = []
    unread: list[Unread] = []
    try:
        for step in steps:
            try:
                report = report_of(step, progress)
            except HloInspectError as error:
                code = error.code if isinstance(error, CompileError) else ""
                if isinstance(error, UsageError) or (len(steps) == 1 and not code):
                    raise
                unread.append(Unread(step.name, step.source, step.target, " ".join(str(error).split()), code))
            else:
                reports.append((step, report))
    finally:
        progress.clear()
    return reports, unread


def _writer(text: str) -> tuple[str, str | None]:
    style, equals, file = text.partition("=")
    if not equals or style not in FORMATS or not file:
        raise UsageError(f"--report {text}: expected FORMAT=FILE with a format of {', '.join(FORMATS)}")
    return style, file


def _reporter(style: str) -> Callable[[Sequence[Checked], bool, Sequence[Unread]], str]:
    """Return the reporter of a format; only that one is imported."""
    import importlib

    module = importlib.import_module(f"hloinspect.render.{_HOMES[style]}")
    reporter: Callable[[Sequence[Checked], bool, Sequence[Unread]], str] = module.render
    return reporter
