"""The public verb ``check``: the gate, for those who have the step in their hands."""

from __future__ import annotations

import inspect as python_inspect
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloinspect.analyze.answer import answer
from hloinspect.analyze.options import JudgeOptions, TraceOptions
from hloinspect.errors import UsageError
from hloinspect.gate.budget import Budget, family_of, parse_budget
from hloinspect.gate.errors import BudgetExceeded, NotEnoughEvidence
from hloinspect.gate.gate import FAILED, PASSED, Checked, check_report, name_of, why_no_entry
from hloinspect.gate.sense import refuse_senseless
from hloinspect.hardware import Target, load_target
from hloinspect.options import CompileOptions, Production
from hloinspect.report.schema import InputInfo, ProgramInfo, Report, Unknown

if TYPE_CHECKING:
    from hloinspect.gate.baseline import Baseline
    from hloinspect.rules.choice import Choice


def check(  # noqa: PLR0913  (a public verb: its keywords are its interface)
    what: Any,
    *,
    target: str | Target | None = None,
    budget: str | Sequence[str] = (),
    baseline: str | Path | None = None,
    update_baseline: bool = False,
    name: str | None = None,
    link: str | None = None,
    devices: int | None = None,
    topology: str | None = None,
    xla_flags: Sequence[str] = (),
    rules: Choice | None = None,
    cache: Path | None = None,
    production: Production | None = None,
    hlo: str | Sequence[str] = (),
    allow_unknown: bool = False,
    name_from: Path | None = None,
) -> Checked:
    """Hold a step against budgets (``"stall=2%"``, or several) and a baseline file; return what was found.

    ``what`` is an INPUT as on the command line (a step's name, a module, a dump, a trace), a function of a file that is
    a step, a ``jax.stages.Compiled`` or ``Lowered`` (which is compiled here, for the devices that it was lowered for),
    or a ``Report``. ``name`` is what the baseline calls it, by default its path from ``name_from`` (the working
    directory). With ``update_baseline`` the answer is recorded first. ``cache`` is a folder for compilations
    (``hloinspect.options.cache_folder()``), ``production`` what the production run had, for compiling a step. ``hlo``
    is a module's file or a directory of ``--xla_dump_to``, or several, with modules that a profile does not carry.

    Raises BudgetExceeded, with the report attached, where a budget is exceeded, and whatever the budgets are where
    values are wrong or the step does not fit (gate/blocking.py; it is not recorded then); NotEnoughEvidence, which is
    one, where nobody can say (unless ``allow_unknown``), or where the baseline has nothing to compare with; and
    HloInspectError for what cannot be read or compiled.
    """
    limits = _limits(budget)
    if update_baseline and baseline is None:
        raise UsageError("update_baseline needs to know which: baseline=FILE")
    if rules is not None:
        refuse_senseless(limits, rules)
    path = None if baseline is None else Path(baseline)
    known = None if path is None else _known(path, update_baseline)
    compiling = CompileOptions(
        devices=devices,
        topology=topology,
        xla_flags=tuple(xla_flags),
        production=production or Production(),
        cache=cache,
    )
    judges_memory = not limits or any(family_of(limit) == "memory" for limit in limits)  # by default a baseline's does
    judging = JudgeOptions(target=target, link=link, rules=rules, memory=True if judges_memory else None)
    tracing = TraceOptions(hlo=(hlo,) if isinstance(hlo, str) else tuple(hlo))
    report, own_name = answer_any(what, compiling, judging, name_from, tracing)
    source = _source_of(what)
    checked = check_report(report, name or own_name, limits, known, source, is_named=bool(name))
    if update_baseline and path is not None:
        recorded = _recorded(checked, path, is_named=bool(name), allow_unknown=allow_unknown)
        checked = check_report(report, checked.name, limits, recorded, source, is_named=bool(name))
    if (status := checked.status(allow_unknown)) == PASSED:
        return checked
    message = failure_line(checked)
    raise BudgetExceeded(message, checked) if status == FAILED else NotEnoughEvidence(message, checked)


def _known(path: Path, update: bool) -> Baseline:
    """Return the baseline in a file; an empty one where the file is to be made."""
    from hloinspect.gate.baseline import Baseline, load_baseline

    return Baseline(path) if update and not path.exists() else load_baseline(path)


def _recorded(checked: Checked, path: Path, *, is_named: bool, allow_unknown: bool) -> Baseline:
    """Return the baseline with the answer recorded. Raises BudgetExceeded and NotEnoughEvidence for what is none."""
    from hloinspect.gate.baseline import update_baseline

    if checked.blocked:
        raise BudgetExceeded(f"{path} was not changed: {failure_line(checked)}", checked)
    if (reason := why_no_entry(checked)) and not allow_unknown:
        raise NotEnoughEvidence(f"{path} was not changed, since {checked.name} is no baseline: {reason}", checked)
    return update_baseline(path, [checked.now], [checked.name] if is_named else ())


def failure_line(checked: Checked) -> str:
    """Return one line on what fails whatever the budgets are, and on the budgets that do not hold."""
    from hloinspect.gate.words import finding_text, result_text, title

    undecided = [note.text for note in checked.undecided]
    parts = [*map(finding_text, checked.blocked), *undecided, *map(result_text, checked.broken)]
    return f"{title(checked)}: " + "; ".join(parts)


def _limits(budget: str | Sequence[str]) -> tuple[Budget, ...]:
    return tuple(parse_budget(text, "budget") for text in ([budget] if isinstance(budget, str) else budget))


def answer_any(
    what: Any,
    compiling: CompileOptions,
    judging: JudgeOptions,
    name_from: Path | None = None,
    tracing: TraceOptions | None = None,
) -> tuple[Report, str]:
    """Return the report on whatever ``check`` takes, and what to call it."""
    folder = name_from or Path.cwd()
    if isinstance(what, Report):
        return what, name_of(what.input.path, folder)
    if isinstance(getattr(what, "report", None), Report):  # an Inspection
        return what.report, name_of(what.report.input.path, folder)
    if hasattr(what, "as_text"):
        return _of_program(what, compiling, judging)
    if isinstance(what, (str, Path)) or python_inspect.isfunction(what):
        source = str(what) if isinstance(what, (str, Path)) else step_of(what)
        return answer(source, compiling, judging, tracing).report, name_of(source, folder)
    hint = ": give the result of its lower(...)" if hasattr(what, "lower") else ""
    raise UsageError(f"{type(what).__name__} is no step, no program and no report{hint}")


def _source_of(what: Any) -> str | None:
    """Return the input that ``answer_any`` names; None for a program, which has no file."""
    if isinstance(what, (str, Path)):
        return str(what)
    if python_inspect.isfunction(what):
        return step_of(what)
    report = what if isinstance(what, Report) else getattr(what, "report", None)
    if not isinstance(report, Report) or report.input.path == report.module.name:  # as ``_of_program`` calls it
        return None
    return report.input.path


def step_of(function: Any) -> str:
    """Return ``file.py:function`` for a function at the top of a file. Raises UsageError for any other."""
    file = python_inspect.getsourcefile(function)
    if file is None or "<" in function.__qualname__:
        raise UsageError(f"{function.__qualname__} is not at the top of a file, so it cannot be found by its name")
    return f"{file}:{function.__qualname__}"


def _of_program(program: Any, compiling: CompileOptions, judging: JudgeOptions) -> tuple[Report, str]:
    """Return the report on a jax.stages.Compiled, or a Lowered that is compiled first, in this process."""
    compiled = program.compile() if hasattr(program, "compile") else program
    with tempfile.TemporaryDirectory(prefix="hloinspect-") as folder:
        file = Path(folder) / "module.hlo"
        file.write_text(compiled.as_text(), encoding="utf-8")
        report = answer(str(file), compiling, judging).report
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in ("jax", "jaxlib")}
    info = InputInfo(report.module.name, report.input.kind, report.input.sha256)
    made = ProgramInfo(versions["jax"], versions["jaxlib"], None, report.program.topology, None)
    target = judging.target
    chosen = load_target(target) if isinstance(target, str) else target
    unknown = report.unknown
    if chosen is not None and (platform := _platform_of(compiled)) not in ("", chosen.platform):
        reason = f"the program was compiled for a {platform.upper()}; {chosen.name} is a {chosen.platform.upper()}"
        unknown = (
            *unknown,
            Unknown(reason, "give the step's name, such as train.py:step, which is compiled for it", "time"),
        )
    return replace(report, input=info, program=made, unknown=unknown), report.module.name


def _platform_of(compiled: Any) -> str:
    """Return the platform of a compiled program's devices, by the shardings of its arguments and results: the text of a
    module for a CPU does not say it. "" where nothing shows it."""
    left = [getattr(compiled, "input_shardings", None), getattr(compiled, "output_shardings", None)]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, (tuple, list)):
            left += one
        for device in getattr(one, "device_set", ()):
            name = str(getattr(device, "platform", ""))
            return "gpu" if name in ("cuda", "rocm") else name
    return ""
