"""The pytest plugin: a fixture that holds a step against budgets, on hardware that is not there.

    def test_the_step_hides_its_transfers(hloinspect):
        hloinspect.check("train.py:step", target="gb200", budget="stall=2%")

    @pytest.mark.hloinspect(target="h100", devices=8)
    def test_nothing_is_worse_than_the_baseline(hloinspect):
        hloinspect.check("train.py:step", baseline="hloinspect-baseline.json")

Compilations are kept (compile/cache.py). Nothing of the package is imported before a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hloinspect.gate.gate import Checked
    from hloinspect.report.schema import Report
    from hloinspect.rules.choice import Choice

PROPERTY = "hloinspect"
"""The name under which a test's report holds what a check that passed has to say; xdist and JUnit XML hand it on."""

MARKER_OPTIONS = ("target", "link", "devices", "topology", "xla_flags", "production", "budget", "baseline")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--hloinspect-update-baseline``, ``--hloinspect-baseline FILE`` and ``--hloinspect-no-cache``."""
    group = parser.getgroup("hloinspect", "host transfers of JAX steps")
    group.addoption(
        "--hloinspect-update-baseline", action="store_true", help="record what is found in the baseline instead"
    )
    group.addoption("--hloinspect-baseline", metavar="FILE", help="baseline of tests that name none")
    group.addoption("--hloinspect-no-cache", action="store_true", help="compile every step anew")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    options = ", ".join(f"{name}=..." for name in MARKER_OPTIONS)
    config.addinivalue_line("markers", f"hloinspect({options}): what the hloinspect fixture compiles and judges for")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the checks that passed have to say, such as that a rule was left out."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    lines = [
        f"{report.nodeid}: {text}"
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, text in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section("hloinspect")
        for line in dict.fromkeys(lines):
            terminalreporter.write_line(line)


@pytest.fixture(name="hloinspect")
def hloinspect_fixture(request: pytest.FixtureRequest) -> Inspector:
    """Compile steps for a target without its hardware, and check them against budgets."""
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("hloinspect"))):  # the nearest one last
        unknown = [name for name in marker.kwargs if name not in MARKER_OPTIONS]
        if unknown or marker.args:
            what = ", ".join(unknown) or "arguments without a name"
            pytest.fail(f"@pytest.mark.hloinspect knows {', '.join(MARKER_OPTIONS)}, not {what}", pytrace=False)
        options.update(marker.kwargs)
    config = request.config
    own = config.getoption("--hloinspect-baseline")
    if "baseline" not in options and own:
        options["baseline"] = str(Path(str(config.invocation_params.dir), own))
    return Inspector(
        rootdir=config.rootpath,
        options=options,
        update=bool(config.getoption("--hloinspect-update-baseline")),
        use_cache=not config.getoption("--hloinspect-no-cache"),
        properties=request.node.user_properties,
    )


@dataclass(frozen=True)
class Inspector:
    """The value of the fixture ``hloinspect``. ``options`` are the marker's; arguments of a call replace them.
    ``properties`` are those of the test."""

    rootdir: Path
    options: dict[str, Any]
    update: bool
    use_cache: bool
    properties: list[tuple[str, object]]

    def check(self, step: Any, *, budget: str | Sequence[str] | None = None, **options: Any) -> Checked:
        """Hold a step against budgets and a baseline; fail the test, with what changed and where, if it does not fit.

        ``step`` and ``options`` are those of ``hloinspect.check``: a name such as ``"train.py:step"`` (files are looked
        for from pytest's root directory), a function that is a step, a compiled program, a module, a trace or a report.
        A baseline that is named by no path is looked for there too. The rules are those of the ``[tool.hloinspect]``
        there, as for ``hloinspect check``; ``rules`` replaces them.
        """
        __tracebackhide__ = True
        from hloinspect.errors import HloInspectError
        from hloinspect.gate.errors import BudgetExceeded
        from hloinspect.gate.verb import check
        from hloinspect.gate.words import details

        chosen = {**self.options, **options}
        if budget is not None:
            chosen["budget"] = budget
        if chosen.get("baseline") is not None:
            chosen["baseline"] = self.rootdir / chosen["baseline"]
        if self.update and chosen.get("baseline") is not None:
            chosen["update_baseline"] = True
        try:
            chosen["rules"] = chosen.get("rules") or self._rules()
            checked = check(self._placed(step), cache=self._cache(), name_from=self.rootdir, **chosen)
        except BudgetExceeded as error:
            lines = [str(error), *(f"  {line}" for line in details(error.checked))]
            lines += [f"  {note.text}" for note in error.checked.notes]
            if chosen.get("baseline") is not None and not error.checked.blocked:
                lines.append("  if this is meant: pytest --hloinspect-update-baseline")
            pytest.fail("\n".join(lines), pytrace=False)
        except HloInspectError as error:
            pytest.fail(f"hloinspect: {error}", pytrace=False)
        self.properties.extend((PROPERTY, note.text) for note in checked.notes)
        return checked

    def inspect(self, step: Any, **options: Any) -> Report:
        """Return the report on a step, to assert on by hand (``hloinspect.report/1``, docs/report.md)."""
        from hloinspect.analyze.options import JudgeOptions
        from hloinspect.gate.verb import answer_any
        from hloinspect.options import CompileOptions, Production

        chosen = {name: value for name, value in self.options.items() if name not in ("budget", "baseline")} | options
        compiling = CompileOptions(
            devices=chosen.pop("devices", None),
            topology=chosen.pop("topology", None),
            xla_flags=tuple(chosen.pop("xla_flags", ())),
            production=chosen.pop("production", None) or Production(),
            module=chosen.pop("module", None),
            cache=self._cache(),
        )
        target, link, rules = (chosen.pop(name, None) for name in ("target", "link", "rules"))
        if chosen:
            raise TypeError(f"inspect() knows no {', '.join(chosen)}")
        judging = JudgeOptions(target=target, link=link, rules=rules or self._rules())
        report, _ = answer_any(self._placed(step), compiling, judging)
        return report

    def _rules(self) -> Choice:
        from hloinspect.rules.config import load_choice

        return load_choice(self.rootdir)

    def _placed(self, step: Any) -> Any:
        """Return a path as it is from the root directory."""
        if not isinstance(step, (str, Path)):
            return step
        text = str(step)
        file, colon, function = text.rpartition(":")
        is_file = (file.endswith(".py") if colon else True) and not Path(file if colon else text).is_absolute()
        if not is_file:
            return text
        return f"{self.rootdir / file}:{function}" if colon else str(self.rootdir / text)

    def _cache(self) -> Path | None:
        if not self.use_cache:
            return None
        from hloinspect.options import cache_folder

        return cache_folder()
