"""The engine: which rules run, their severities, their pages, the configuration, and what the text shows."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.analyze.inspect import inspect
from hloinspect.cli import main
from hloinspect.compile.known_errors import KNOWN, explained
from hloinspect.errors import CompileError, UsageError
from hloinspect.placements.requested import Requested, count_requested
from hloinspect.render.data.rule_page import as_markdown, index_markdown
from hloinspect.render.terminal.report_text import to_text
from hloinspect.render.terminal.rule_text import rule_text
from hloinspect.report.schema import SourceInfo
from hloinspect.rules.choice import Choice
from hloinspect.rules.config import load_choice, with_options
from hloinspect.rules.engine import source_line
from hloinspect.rules.registry import RULES, rule_of
from hloinspect.rules.rule import HEADINGS, SEVERITIES
from hloinspect.thresholds import SHOWN_FINDINGS
from tests.support.places import ROOT
from tests.support.rules_samples import codes, finding, fixture, report_of

PAGES = ROOT / "docs" / "rules"
Run = Callable[..., subprocess.CompletedProcess[str]]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments])


# ---- the rules themselves


def test_codes_and_names_are_unique_stable_in_form_and_in_order() -> None:
    found = [rule.code for rule in RULES]
    assert found == sorted(set(found))
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(
        len(code) == 6 and code.startswith("HLO") and code[3] in "1234" and code[4:].isdecimal() for code in found
    )
    assert all(rule.name == rule.name.lower().replace("_", "-").replace(" ", "-") for rule in RULES)
    assert all(rule.severity in SEVERITIES for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_page_has_its_headings_each_with_text(rule) -> None:  # type: ignore[no-untyped-def]
    sections = rule.sections()
    assert tuple(sections) == HEADINGS
    assert all(text.strip() for text in sections.values())
    assert rule.summary.endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_committed_page_is_the_docstring(rule) -> None:  # type: ignore[no-untyped-def]
    """Compare with the page that this makes: for CODE, hloinspect rules CODE --format markdown -o docs/rules/CODE.md"""
    assert (PAGES / f"{rule.code}.md").read_text(encoding="utf-8") == as_markdown(rule)


def test_every_rule_is_triggered_and_every_rule_kept_silent_somewhere_in_the_tests() -> None:
    text = "".join(path.read_text() for path in sorted((ROOT / "tests" / "rules").glob("test_*.py")))
    for rule in RULES:
        if rule.code == "HLO308":  # this runs where a step is compiled, not over a report
            continue
        code = re.escape(rule.code)
        assert re.search(rf'finding\([^"]*(?:"[^"]*"[^"]*)*"{code}"|"{code}" in codes|\{{[^}}]*"{code}"', text), (
            rule.code
        )
        assert re.search(rf'"{code}" not in codes|FIRING', text), rule.code


def test_the_committed_table_lists_the_rules_and_no_page_is_left_over() -> None:
    assert (PAGES / "index.md").read_text(encoding="utf-8") == index_markdown()
    assert {path.stem for path in PAGES.glob("HLO*.md")} == {rule.code for rule in RULES}


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_page_keeps_to_the_terminal(width: int) -> None:
    for rule in RULES:
        text = rule_text(rule, width)
        example = set(rule.sections()["Example"].splitlines())
        assert all(len(line) <= width or line.strip() in example for line in text.splitlines())


# ---- the choice


def test_the_longest_code_that_fits_decides_and_ignore_wins_a_tie() -> None:
    rule = rule_of("HLO102")
    assert Choice().runs(rule)
    assert not Choice(ignore=("HLO1",)).runs(rule)
    assert Choice(select=("HLO102",), ignore=("HLO1",)).runs(rule)
    assert not Choice(select=("HLO102",), ignore=("HLO102",)).runs(rule)
    assert not Choice(select=("HLO2",)).runs(rule)
    assert Choice(severity={"HLO1": "info", "HLO102": "error"}).severity_of(rule) == "error"


@given(
    st.lists(st.sampled_from(["ALL", "HLO1", "HLO10", "HLO102", "HLO2", "HLO201", "HLO3"]), max_size=4),
    st.lists(st.sampled_from(["ALL", "HLO1", "HLO10", "HLO102", "HLO2", "HLO201", "HLO3"]), max_size=4),
)
def test_every_rule_is_decided_by_its_longest_prefix(select: list[str], ignore: list[str]) -> None:
    chosen = Choice(tuple(select), tuple(ignore))
    for rule in RULES:
        best = {True: -1, False: -1}
        for wanted, prefixes in ((True, select), (False, ignore)):
            for prefix in prefixes:
                if prefix == "ALL" or rule.code.startswith(prefix):
                    best[wanted] = max(best[wanted], 0 if prefix == "ALL" else len(prefix))
        assert chosen.runs(rule) == (best[True] > best[False])


def test_a_rule_that_is_not_chosen_neither_speaks_nor_is_listed_as_not_run() -> None:
    path = str(fixture("gb200_offload_scan"))
    report = inspect(path, target="gb200", rules=Choice(select=("HLO3",))).report
    assert codes(report) == set()
    assert {rule.code for rule in report.rules_not_run} == {"HLO302", "HLO303", "HLO304", "HLO309", "HLO310"}


def test_a_requested_severity_is_used() -> None:
    path = str(fixture("gb200_offload_scan"))
    report = inspect(path, target="gb200", rules=Choice(severity={"HLO105": "error"})).report
    assert finding(report, "HLO105").severity == "error"
    assert finding(report_of(fixture("gb200_offload_scan"), "gb200"), "HLO105").severity == "warning"


# ---- configuration


def write(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def test_the_nearest_pyproject_with_the_table_is_read(tmp_path: Path) -> None:
    write(tmp_path, '[tool.hloinspect]\nignore = ["hlo207"]\n[tool.hloinspect.severity]\nHLO110 = "info"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path / "a", "[tool.other]\nx = 1\n")
    assert load_choice(inner) == Choice(ignore=("HLO207",), severity={"HLO110": "info"})


def test_without_a_table_all_rules_run(tmp_path: Path) -> None:
    assert load_choice(tmp_path) == Choice()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.hloinspect\n", "pyproject.toml: "),
        ("[tool]\nhloinspect = 3\n", "expected a table, found 3"),
        ('[tool.hloinspect]\nselct = ["HLO1"]\n', "unknown key 'selct'"),
        ('[tool.hloinspect]\nselect = "HLO1"\n', "select: expected a list, found 'HLO1'"),
        ('[tool.hloinspect]\nignore = ["E501"]\n', "'E501' is no rule's code"),
        ('[tool.hloinspect]\nignore = [""]\n', "'' is no rule's code"),
        ('[tool.hloinspect.severity]\nHLO1 = "loud"\n', "severity.HLO1: expected error, warning or info, found 'loud'"),
        ("[tool.hloinspect]\nseverity = 3\n", "severity: expected a table, found 3"),
    ],
)
def test_a_faulty_configuration_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        load_choice(tmp_path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_command_reads_the_configuration_where_it_is_run(tmp_path: Path, hloinspect: Run) -> None:
    write(tmp_path, '[tool.hloinspect]\nselct = ["HLO1"]\n')
    done = hloinspect("inspect", str(fixture("gb200_save")), "--target", "gb200", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown key 'selct'" in done.stderr.splitlines()[0]


def test_a_pyproject_that_is_not_text_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe\x00[tool.hloinspect]")
    with pytest.raises(UsageError):
        load_choice(tmp_path)


def test_options_replace_the_files_codes_and_add_to_its_severities() -> None:
    written = Choice(("HLO1",), ("HLO110",), {"HLO102": "info"})
    chosen = with_options(written, ["HLO2,HLO3"], [], ["HLO201=info"])
    assert chosen == Choice(("HLO2", "HLO3"), ("HLO110",), {"HLO102": "info", "HLO201": "info"})
    assert with_options(written, [], [], []) == written


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--select", "XYZ"], "--select: 'XYZ' is no rule's code"),
        (["--ignore", "HLO1,"], "--ignore: '' is no rule's code"),
        (["--severity", "HLO1"], "expected CODE=LEVEL"),
        (["--severity", "HLO1=loud"], "'loud' is no severity"),
        (["--severity", "ABC=info"], "'ABC' is no rule's code"),
    ],
)
def test_a_faulty_option_is_one_line_and_exit_code_2(option: list[str], said: str) -> None:
    result = run("inspect", str(fixture("gb200_save")), "--target", "gb200", *option)
    assert result.exit_code == 2
    assert said in result.stderr


# ---- the command


def test_the_list_has_a_line_a_rule_and_its_json_the_contracts_keys() -> None:
    lines = run("rules").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("HLO")] == [rule.code for rule in RULES]
    assert all(len(line) <= 100 for line in lines)
    listed = json.loads(run("rules", "--format", "json").stdout)
    assert [set(each) for each in listed] == [{"code", "name", "severity", "summary"}] * len(RULES)


@pytest.mark.parametrize("text", ["HLO102", "hlo102", "h2d-held-by-remat-barrier"])
def test_a_page_is_found_by_code_or_name(text: str) -> None:
    assert "What to do" in run("rules", text).stdout


def test_an_unknown_rule_is_one_line_with_the_nearest() -> None:
    result = run("rules", "HLO1O2")
    assert result.exit_code == 2
    assert "did you mean HLO1" in result.stderr


def test_listing_rules_imports_no_numpy_and_no_jax() -> None:
    code = (
        "import sys, hloinspect.rules.registry;"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'jax', 'google.protobuf')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# ---- the text


def test_findings_stand_below_the_table_with_cost_advice_and_a_count() -> None:
    text = click.unstyle(to_text(report_of(fixture("h100_offload_scan"), "h100")))
    assert text.index("transfer  tensor") < text.index("HLO105")
    (head,) = [line for line in text.splitlines() if line.startswith("HLO102")]
    assert "a step" in head
    assert head.endswith("dense.py:80")
    assert "   Try  jax.checkpoint" in text
    assert re.search(r"^2 errors.*What a code means: hloinspect rules HLO10", text, re.MULTILINE)
    assert all(len(line) <= 100 for line in text.splitlines())


def test_what_a_finding_says_is_not_said_twice() -> None:
    text = click.unstyle(to_text(report_of(fixture("h100_offload_scan"), "h100")))
    assert "h2d 2 is partial" not in text


def test_five_findings_are_shown_and_all_on_demand() -> None:
    report = report_of(fixture("h100_offload_scan"), "h100")
    many = tuple(
        dataclasses.replace(report.findings[0], code=f"HLO9{number:02}", severity="warning") for number in range(9)
    )
    crowded = dataclasses.replace(report, findings=many)
    short, whole = click.unstyle(to_text(crowded)), click.unstyle(to_text(crowded, show_all=True))
    assert sum(line.startswith("HLO9") for line in short.splitlines()) == SHOWN_FINDINGS
    assert "(4 more with --all)" in short
    assert sum(line.startswith("HLO9") for line in whole.splitlines()) == 9


def test_what_only_informs_is_counted_and_shown_on_demand() -> None:
    report = report_of(fixture("gb200_compute_on"), "gb200")
    short, whole = click.unstyle(to_text(report)), click.unstyle(to_text(report, show_all=True))
    assert "1 note (1 more with --all)" in short
    assert "HLO307 info" not in short
    assert "HLO307 info" in whole
    assert "not run: HLO302, HLO303, HLO304: needs the StableHLO" in " ".join(whole.split())


def test_names_from_a_module_cannot_write_to_the_terminal() -> None:
    report = report_of(fixture("h100_offload_scan"), "h100")
    evil = dataclasses.replace(
        report.findings[0], message="a\x1b[2Jb", remedy="c\u202ed", source=SourceInfo("\x1b]0;x\x07.py", 3, None)
    )
    text = click.unstyle(to_text(dataclasses.replace(report, findings=(evil,))))
    assert "\x1b" not in text
    assert "\u202e" not in text


# ---- the user's line


def test_the_line_itself_is_shown_where_the_file_is_there(tmp_path: Path) -> None:
    code = tmp_path / "train.py"
    code.write_text("import jax\n    hid = x @ w  # big\n")
    assert source_line(SourceInfo(str(code), 2, None)) == "hid = x @ w  # big"
    assert source_line(SourceInfo(str(code), 9, None)) is None
    assert source_line(SourceInfo(str(tmp_path / "gone.py"), 1, None)) is None


def test_only_python_is_opened_since_a_module_may_name_any_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password\n")
    assert source_line(SourceInfo(str(secret), 1, None)) is None
    assert source_line(SourceInfo("a\0b.py", 1, None)) is None
    assert source_line(SourceInfo(str(tmp_path), 1, None)) is None


# ---- StableHLO and compilers' errors


def test_placements_and_memory_kinds_of_stablehlo_are_counted() -> None:
    text = """module @jit_step {
  func.func public @main(%arg0: tensor<4xf32> {mhlo.memory_kind = "pinned_host"}, %arg1: tensor<4xf32> {mhlo.memory_kind = "device"}) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"}, tensor<4xf32> {mhlo.memory_kind = "pinned_host"}) {
    %0 = stablehlo.custom_call @annotate_device_placement(%arg0) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.custom_call @annotate_device_placement(%0) {mhlo.frontend_attributes = {_xla_buffer_placement = "device"}} : (tensor<4xf32>) -> tensor<4xf32>
"""  # noqa: E501
    assert count_requested(text) == Requested(to_host=1, to_device=1, arguments=1, results=2)
    assert not count_requested("module @jit_step {}").anything


MESSAGES = [
    # what jaxlib 0.9.2 says of an optimizer's state that is returned to the host, word for word
    "JaxRuntimeError: INVALID_ARGUMENT: E1200: CompileTimeHostOffloadOutputLocationMismatch: Tensor which is moved to "
    "host (starting from custom-call.28) is returned from the entry computation but the layout for this output is not "
    "set to host memory. See https://openxla.org/xla/errors/error_1200 for more details.",
    'INTERNAL: Tensor which is moved to host (starting from "copy.1") is returned from the entry computation but the '
    "layout for this output is not set to host memory.",
    "UNIMPLEMENTED: Side-effect ops cannot be replicated: %custom-call.3",
    "INTERNAL: Mosaic: sub-chunk copy is not supported in async dynamic slice",
    "INVALID_ARGUMENT: Tensor which is moved to host is used by an instruction (add.2) which is not acceptable during "
    "pure memory offload.",
    "CUDA Runtime error: cudaErrorInvalidDevice",
    # the following word for word as jaxlib 0.12.0 and libtpu say them, cut where they go on for long
    "JaxRuntimeError: INTERNAL: during context [end-of-post-layout_assignment]: Expected instruction to have shape "
    "equal to f32[4,128,128]{2,1,0}, actual shape is f32[2,128,64]{2,1,0}: %dynamic-slice.1 = f32[2,128,64]{2,1,0} "
    "dynamic-slice(%param_0.1, %param_1.1, %param_2, %param_3), dynamic_slice_sizes={4,128,128}",
    "JaxRuntimeError: INTERNAL: during context [end-of-post-layout_assignment]: Expected instruction to have shape "
    "equal to (s32[], f32[2,3,64,128]{3,2,1,0}), actual shape is (s32[], f32[2,3,64,128]{3,2,1,0:S(5)}): %tuple.3 = "
    "(s32[], f32[2,3,64,128]{3,2,1,0:S(5)}) tuple(%add.5, %dynamic_update_slice.4)",
    "JaxRuntimeError: INTERNAL: during context [post-optimization]: host-call.3.cloned.1.call-start.2 (opcode: "
    "async-start) expects the shape of operand 0 to match the async shape at index {0, 0} "
    "(f32[2,3,64,128]{3,2,1,0:T(8,128)} vs f32[2,3,64,128]{3,2,1,0:T(8,128)S(5)}).",
    "JaxRuntimeError: INTERNAL: RET_CHECK failure (third_party/tensorflow/compiler/xla/service/cpu/thunk_emitter.cc:"
    "348) instruction->has_backend_config() Fusion must have backend config",
    "the compiling process was killed by SIGABRT: Check failed: caller_computation->IsAsyncComputation() This "
    "computation's caller must be an async computation.",
    "JaxRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
    "required for HLO temporaries (58.21T) exceeds available HBM (15.75G). HLO module: jit_step.",
    "JaxRuntimeError: INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot_general.0 = "
    "f32[4000000,4000000]{1,0} dot(%parameter_0, %parameter_1)",
    "JaxRuntimeError: INVALID_ARGUMENT: No such compile option: 'xla_gpu_foo_bar'",
    "JaxRuntimeError: NOT_FOUND: No FFI handler registered for my_kernel on a platform CUDA (canonical cuda)",
    "JaxRuntimeError: INVALID_ARGUMENT: Custom emitter for my_kernel not found",
    "ValueError: Cannot lower pallas_call on platform: gpu. To use Pallas on GPU, install jaxlib GPU.",
    "ValueError: memory_space of all inputs passed to `add` must be the same. Got one operand with type: "
    "float32<host>[128,128] and another operand with type: float32[128,128]",
    "JaxRuntimeError: INVALID_ARGUMENT: Unknown memory kind pinned_hots",
    "ValueError: Memory kinds passed to jax.jit does not match memory kind on the respective arg. Got jit memory kind: "
    "device, arg memory kind: pinned_host for arg type: float32<host>[128,128]",
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_known_error_of_a_compiler_is_explained(message: str) -> None:
    """Use texts of XLA's sources, of public reports (failures U14, U15, U22, U16; CUB), and of compilers that were
    tried."""
    found = explained(CompileError(message, "the rest"))
    assert str(found).startswith(message)
    assert "; HLO308: " in str(found)
    assert found.detail == "the rest"
    assert sum(bool(re.search(known.pattern, message, re.DOTALL)) for known in KNOWN) == 1


def test_another_error_stays_as_it_is() -> None:
    error = CompileError("INTERNAL: a trouble that nobody knows", "")
    assert explained(error) is error


# ---- the table of failures


def test_every_known_failure_is_in_the_table_with_its_rule_or_the_reason_why_not() -> None:
    rows = [
        line.split("|")[1:-1] for line in (ROOT / "docs" / "failures.md").read_text().splitlines() if line[:2] == "| "
    ]
    cells = [[cell.strip() for cell in row] for row in rows]
    identified = {row[0]: row[2] for row in cells if re.fullmatch(r"U\d+|[A-E]", row[0])}
    assert set(identified) == {f"U{number}" for number in range(29)} | set("ABCDE")
    assert sum(row[0].count("openxla") + row[0].count("maxtext") + row[0].count("jax ") > 0 for row in cells) >= 17
    known = {rule.code for rule in RULES}
    for row in cells:
        named = set(re.findall(r"HLO\d{3}", row[2]))
        assert named <= known
        assert named or row[2].startswith("none: ") or row[0] in ("id", "report") or set(row[0]) == {"-"}


def test_wrong_gradients_stand_in_front_of_what_is_only_slow() -> None:
    report = report_of(fixture("h100_offload_scan", "jax0.10.2"), "h100")
    assert report.findings[0].code == "HLO301"
    assert len(codes(report, "error")) > 1
