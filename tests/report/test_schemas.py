"""The JSON Schemas and tables in docs, and real answers of every kind held against them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from hloinspect.analyze.inspect import inspect
from hloinspect.analyze.trace import trace
from hloinspect.cli import main
from hloinspect.errors import InputError
from hloinspect.gate.baseline import load_baseline
from hloinspect.hardware import load_target
from hloinspect.maxtext.summary import MaxTextAnswer, Variant
from hloinspect.plan.model import SearchResult
from hloinspect.plan.verb import PlanRequest, make_plan
from hloinspect.render.data.maxtext_json import maxtext_json
from hloinspect.report.host_memory import host_memory_of
from hloinspect.report.json import to_json
from hloinspect.report.schema import Report
from tests.support.field_tables import PAGES, page_path, page_with_tables, records_without_table
from tests.support.field_words import fields_without_words
from tests.support.gate_samples import FIXTURES, OLD_FIXTURES
from tests.support.json_schemas import DOCUMENTS, Document, faults, faults_for_users, records_of, schema_of, schema_text
from tests.support.passes_samples import DROPPED, GOOD, write
from tests.support.places import CASES, ROOT

Json = dict[str, Any]
SCAN = FIXTURES / "gb200_offload_scan" / "module.hlo.txt.gz"
UNROLLED = FIXTURES / "gb200_offload_unrolled" / "module.hlo.txt.gz"
COMPUTE = FIXTURES / "gb200_compute_on_host_memory" / "module.hlo.txt.gz"
OLD = OLD_FIXTURES / "gb200_optimizer" / "module.hlo.txt.gz"
documents = pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)


def run(*arguments: str | Path, codes: tuple[int, ...] = (0, 1, 3)) -> Json:
    result = CliRunner().invoke(main, [*map(str, arguments), "--format", "json"])
    assert result.exit_code in codes, result.output
    found: Json = json.loads(result.stdout)
    return found


# ---- what is committed


@documents
def test_a_committed_schema_is_what_the_types_say(document: Document) -> None:
    assert document.path.read_text(encoding="utf-8") == schema_text(document), (
        "write them again with: python -m tests.support.write_schemas"
    )


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_what_the_types_say(name: str) -> None:
    assert page_path(name).read_text(encoding="utf-8") == page_with_tables(name), (
        "write them again with: python -m tests.support.write_schemas"
    )


@documents
def test_every_field_says_what_it_is(document: Document) -> None:
    assert [field for record in records_of(document.record) for field in fields_without_words(record)] == []


def test_every_record_has_its_fields_in_a_table() -> None:
    assert records_without_table() == []


@documents
@pytest.mark.parametrize("strict", [False, True])
def test_a_schema_is_one_of_draft_2020_12(document: Document, strict: bool) -> None:
    Draft202012Validator.check_schema(schema_of(document, strict))


# ---- real answers


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Json]]:
    """Some answers of every kind."""
    folder = tmp_path_factory.mktemp("answers")
    baseline = folder / "baseline.json"
    gate = ("check", OLD, "--target", "gb200", "--as", "optimizer", "--baseline", baseline)
    run(*gate, "--update-baseline")
    newer = FIXTURES / "gb200_optimizer" / "module.hlo.txt.gz"
    checked = ("check", newer, "--target", "gb200", "--as", "optimizer", "--baseline", baseline)
    return {
        "report": [run("inspect", SCAN, "--target", "gb200"), run("inspect", COMPUTE), run("inspect", UNROLLED)],
        "check": [
            run(*checked, "--budget", "stall=1%", "--budget", "findings+9"),
            run("check", SCAN, folder / "none.hlo", "--target", "gb200", "--budget", "stall=2%", codes=(2,)),
        ],
        "baseline": [json.loads(baseline.read_text(encoding="utf-8"))],
        "plan": [run("plan", f"scan={SCAN}", f"unrolled={UNROLLED}", "--target", "gb200", "--link", "100GB/s")],
        "diff": [run("diff", SCAN, UNROLLED, "--target", "gb200"), run("diff", OLD, newer, "--target", "gb200")],
        "passes": [run("passes", write(folder / "good", GOOD)), run("passes", write(folder / "dropped", DROPPED))],
        "maxtext": [json.loads(maxtext_json(_maxtext(inspect(str(SCAN), target="gb200").report)))],
    }


def _maxtext(report: Report) -> MaxTextAnswer:
    """The answer that MaxText's step would get with this report."""
    host = host_memory_of(report, load_target("gb200"))
    variants = tuple(Variant(tensors, report, host, 1.5, 9.25, 1 << 30) for tensors in ("offload", "remat"))
    settings = {"scan_layers": True, "base_num_decoder_layers": 4, "remat_policy": "custom"}
    return MaxTextAnswer(settings, ("decoder_layer_input",), ("mla_q",), ("query_proj",), ("a note",), variants)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_real_answers_are_as_their_schema_says_with_no_key_that_it_does_not_know(
    answers: dict[str, list[Json]], name: str
) -> None:
    for answer in answers[name]:
        assert answer["schema"] == f"hloinspect.{name}/1"
        assert faults(answer, name) == []
        assert faults_for_users(answer, name) == []


def test_a_report_on_a_trace_is_as_the_schema_says(corpus: Path) -> None:
    found = trace(str(corpus / "traces" / "tpu_v6e_host_offload.xplane.pb"))
    answer = json.loads(to_json(found.report))
    assert faults(answer, "report") == []
    assert faults_for_users(answer, "report") == []


def test_a_plan_with_everything_in_it_is_as_the_schema_says() -> None:
    plan = make_plan(
        PlanRequest(sources=(f"scan={SCAN}", f"unrolled={UNROLLED}"), targets=("gb200",), links=("200GB/s", "100GB/s"))
    )
    found = SearchResult(1, "save_only_these_names()", "", ("flags=o1: 3 ms -> 2 ms",), 4, "its time was over")
    answer = json.loads(replace(plan, search=found, policies={"own": "the step's own"}, best=None).to_json())
    assert (len(answer["points"]), len(answer["elsewhere"])) == (2, 4)
    assert faults(answer, "plan") == []


# ---- wrong answers


def _records(answer: Any, maps: frozenset[str], path: str = "$") -> Iterator[tuple[str, Json]]:
    """Yield the first object at each place of parsed JSON that is a record and not a map."""
    if isinstance(answer, dict):
        yield path, answer
        for key, value in answer.items():
            if key not in maps:
                yield from _records(value, maps, f"{path}.{key}")
    elif isinstance(answer, list):
        for value in answer:
            yield from _records(value, maps, f"{path}[]")


def _one_of_each(answer: Json, name: str) -> dict[str, Json]:
    maps = frozenset(
        field
        for record in records_of(DOCUMENTS[name].record)
        for field, declared in record.__annotations__.items()
        if str(declared).startswith(("dict[", "Mapping["))
    )
    return dict(reversed(list(_records(answer, maps))))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_key_that_no_type_declares_is_a_fault_in_every_object(answers: dict[str, list[Json]], name: str) -> None:
    wrong = copy.deepcopy(answers[name][0])
    for path, each in _one_of_each(wrong, name).items():
        each["undeclared"] = 1
        assert any("undeclared" in fault for fault in faults(wrong, name)), path
        assert bool(faults_for_users(wrong, name)) == DOCUMENTS[name].is_read, path  # elsewhere keys may come
        del each["undeclared"]


@pytest.mark.parametrize("name", sorted(set(DOCUMENTS) - {"baseline"}))
def test_no_key_may_go(answers: dict[str, list[Json]], name: str) -> None:
    wrong = copy.deepcopy(answers[name][0])
    for path, each in _one_of_each(wrong, name).items():
        held = dict(each)
        each.clear()
        found = "\n".join(faults_for_users(wrong, name))
        each.update(held)
        assert [key for key in held if f"'{key}' is a required property" not in found] == [], path


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda r: r["transfers"][0].update(verdict="good"), "$.transfers[0].verdict"),
        (lambda r: r["transfers"][0].update(bytes=1.5), "$.transfers[0].bytes"),
        (lambda r: r["transfers"][0].update(asynchronous=1), "$.transfers[0].asynchronous"),
        (lambda r: r["transfers"][0]["tensor"].update(shape=["8"]), "$.transfers[0].tensor.shape[0]"),
        (lambda r: r["memory"].update(source=None), "$.memory.source"),
        (lambda r: r.update(schema="hloinspect.report/2"), "$.schema"),
        (lambda r: r["program"].update(flags="--a"), "$.program.flags"),
        (lambda r: r.update(unknown=None), "$.unknown"),
    ],
)
def test_a_value_of_another_type_is_named_by_its_place(
    answers: dict[str, list[Json]], change: Callable[[Json], None], place: str
) -> None:
    wrong = copy.deepcopy(answers["report"][0])
    change(wrong)
    found = faults_for_users(wrong, "report")
    assert len(found) == 1
    assert found[0].startswith(f"{place}:")


def test_what_an_older_baseline_does_not_have_may_be_absent(answers: dict[str, list[Json]]) -> None:
    older = copy.deepcopy(answers["baseline"][0])
    for entry in older["entries"]:
        del entry["origin"], entry["made"]["configuration"]
        for finding in entry["findings"]:
            del finding["subjects"]
    assert faults(older, "baseline") == []


@pytest.mark.parametrize("file", sorted((CASES / "baselines").glob("*.json")), ids=lambda file: file.stem)
def test_a_damaged_baseline_that_is_refused_is_none_by_the_schema_either(file: Path) -> None:
    with pytest.raises(InputError):
        load_baseline(file)
    assert faults_for_users(json.loads(file.read_text(encoding="utf-8")), "baseline") != []


def test_the_words_of_a_closed_set_are_in_the_schema_and_in_the_table() -> None:
    schema = json.loads(DOCUMENTS["report"].path.read_text(encoding="utf-8"))
    verdicts = schema["$defs"]["TransferInfo"]["properties"]["verdict"]["enum"]
    assert verdicts == ["hidden", "partial", "exposed", "synchronous", "unknown"]
    (row,) = [
        line for line in (ROOT / "docs" / "report.md").read_text().splitlines() if line.startswith("| `verdict` |")
    ]
    assert all(f"`{word}`" in row for word in verdicts)


def test_records_of_results_are_frozen() -> None:
    for document in DOCUMENTS.values():
        for record in records_of(document.record):
            assert is_dataclass(record)
            assert record.__dataclass_params__.frozen, record  # type: ignore[attr-defined]
