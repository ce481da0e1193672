"""Engine that runs the rules over a report and sorts their findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hloinspect.kinds import Severity
from hloinspect.report.schema import FindingInfo, Report, RuleLeftOut, RuleNotRun, SourceInfo
from hloinspect.report.unexplained import unexplained_text
from hloinspect.rules.blocking import TOO_LARGE
from hloinspect.rules.choice import Choice
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.registry import RULES
from hloinspect.rules.rule import (
    AUDIT,
    ERROR,
    INFO,
    MEASURED,
    MEMORY,
    MODULE,
    PREDICTION,
    SCHEDULE,
    SEVERITIES,
    STABLEHLO,
    TARGET,
    TRACE,
    WARNING,
    Found,
    Rule,
)
from hloinspect.thresholds import INFO_COST_SHARE, WARNING_COST_SHARE

DOUBT = "it rests on the prediction, which does not explain this profile"
"""What is added to a finding that rests on the prediction where that does not explain the profile."""

_LONGEST_LINE = 200
_LARGEST_SOURCE = 4 << 20

_MISSING: Mapping[str, tuple[Callable[[Evidence], bool], str]] = {
    MODULE: (lambda e: e.offload is not None, "needs the module: the input has none, or not the one that ran"),
    SCHEDULE: (lambda e: e.offload is not None and e.module.is_scheduled, "needs a scheduled module"),
    PREDICTION: (lambda e: e.step is not None, "needs a prediction: --target, and a link for it"),
    MEMORY: (
        lambda e: e.report.memory.device_bytes is not None,
        "needs the memory of the step: a scheduled module, `hloinspect compile` or a dump",
    ),
    TARGET: (lambda e: e.report.target is not None, "needs a --target"),
    STABLEHLO: (
        lambda e: e.requested is not None,
        "needs the StableHLO of the step: `hloinspect compile` writes it; STEM.stablehlo beside STEM.hlo is read too",
    ),
    AUDIT: (
        lambda e: e.report.audit is not None and e.report.audit.requested_from is not None,
        "needs the placements that the program requests: the step itself, `hloinspect compile`, STEM.stablehlo beside "
        "STEM.hlo, or a dump with *before_optimizations.txt",
    ),
    MEASURED: (lambda e: e.report.step.measured is not None, "needs a trace with whole steps: `hloinspect trace`"),
    TRACE: (lambda e: e.report.trace is not None, "needs a trace: `hloinspect trace`"),
}


def run_rules(evidence: Evidence, choice: Choice | None = None) -> Report:
    """Return the report with its findings, the most important first, and with the rules that did not run and why."""
    chosen = choice or Choice()
    findings: list[FindingInfo] = []
    not_run: list[RuleNotRun] = []
    left_out: list[RuleLeftOut] = []
    for rule in RULES:
        if reason := chosen.why_left_out(rule.code):
            left_out.append(RuleLeftOut(rule.code, rule.name, reason))
            continue
        if reason := missing(rule, evidence):
            not_run.append(RuleNotRun(rule.code, rule.name, reason))
            continue
        findings += [_finding(rule, found, evidence, chosen) for found in rule.check(evidence)]
        if rule.gap is not None and (reason := rule.gap(evidence)):
            not_run.append(RuleNotRun(rule.code, rule.name, reason))
    findings.sort(key=_rank)
    return replace(
        evidence.report,
        findings=tuple(findings),
        rules_not_run=tuple(not_run),
        rules_left_out=tuple(left_out),
    )


def _rank(finding: FindingInfo) -> tuple[int, int, float, str]:
    """Return the key of a finding: severity first, then the kind (cannot run, wrong results, slow), then its cost."""
    urgency = 0 if finding.code == TOO_LARGE else 1 if finding.code.startswith("HLO3") else 2
    return (SEVERITIES.index(finding.severity), urgency, -(finding.cost_ms or 0.0), finding.code)


def missing(rule: Rule, evidence: Evidence) -> str:
    """Return what a rule lacks to run, or ""."""
    for need in rule.needs:
        there, reason = _MISSING[need]
        if not there(evidence):
            return reason
    return ""


def _is_doubtful(rule: Rule, evidence: Evidence) -> bool:
    """Return whether a rule rests on a prediction that does not explain the profile."""
    return PREDICTION in rule.needs and bool(unexplained_text(evidence.report))


def _finding(rule: Rule, found: Found, evidence: Evidence, choice: Choice) -> FindingInfo:
    doubtful = _is_doubtful(rule, evidence)
    first = evidence.infos[found.transfers[0]] if found.transfers else None
    computation = found.computation or (first.computation if first else None)
    source = found.source or (first.source if first else None) or _source(evidence, computation, found.instruction)
    loop = evidence.loops.get(computation) if computation and evidence.offload else None
    return FindingInfo(
        code=rule.code,
        name=rule.name,
        severity=choice.severity_of(rule) or _capped(_severity(rule, found, evidence), doubtful),
        message=f"{found.message} ({DOUBT})" if doubtful else found.message,
        remedy=found.remedy,
        transfer=first.id if first else None,
        instruction=found.instruction or (first.start if first else None),
        source=source,
        evidence=found.evidence,
        transfers=found.transfers,
        computation=computation,
        loop=loop.name if loop else None,
        cost_ms=found.cost_ms,
        gain_ms=found.gain_ms,
        source_text=source_line(source) if source else None,
    )


def _capped(severity: Severity, doubtful: bool) -> Severity:
    """Return the severity, at most a warning where the finding rests on a prediction that explains nothing."""
    return max(severity, WARNING, key=SEVERITIES.index) if doubtful else severity


def _severity(rule: Rule, found: Found, evidence: Evidence) -> Severity:
    if found.severity is not None:
        return found.severity
    step_ms = evidence.step_ms
    if not rule.by_cost or not step_ms or found.cost_ms is None:
        return rule.severity
    share = found.cost_ms / step_ms
    sure = not found.transfers or any(evidence.infos[number].robust for number in found.transfers)
    least: Severity = INFO if share < INFO_COST_SHARE else WARNING if share < WARNING_COST_SHARE or not sure else ERROR
    return max(rule.severity, least, key=SEVERITIES.index)


def _source(evidence: Evidence, computation: str | None, instruction: str | None) -> SourceInfo | None:
    """Return the user's line of an instruction that is no transfer."""
    if evidence.offload is None or computation is None or instruction is None:
        return None
    from hloinspect.offload.source import read_source

    found = evidence.module.computations[computation].find(instruction)
    source = read_source(found.metadata) if found is not None else None
    return source.info if source else None


def source_line(source: SourceInfo) -> str | None:
    """Return the text of a line of Python, or None where the file does not exist.

    Other files are not opened: the module names them, and a module may come from anywhere.
    """
    path = Path(source.file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
            return None
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if number == source.line:
                    return line.strip()[:_LONGEST_LINE] or None
    except (OSError, ValueError):
        return None
    return None
