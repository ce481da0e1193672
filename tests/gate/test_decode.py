"""Decoding of a baseline, a file that anyone may have changed: it is read whole, or refused with the path of the
field."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloinspect import decoding
from hloinspect.analyze import inspect as api
from hloinspect.cli import main
from hloinspect.errors import InputError
from hloinspect.gate.baseline import Baseline, load_baseline, to_json
from hloinspect.gate.snapshot import snapshot_of
from tests.support.gate_samples import FIXTURES, SMALL
from tests.support.places import CASES

CASES = CASES / "baselines"
SAMPLE = FIXTURES / "gb200_offload_scan" / "module.hlo.txt.gz"


@pytest.fixture(scope="module")
def valid() -> dict[str, Any]:
    """Return a baseline with every kind of field filled."""
    entry = snapshot_of(api.inspect(str(SAMPLE), target="gb200").report, "step", origin="a/step (folder 0123)")
    data: dict[str, Any] = json.loads(to_json(Baseline(Path("b.json"), (entry,))))
    made = data["entries"][0]["made"]
    made.update(jax="0.12.0.1", jaxlib="0.12.0.1", flags=["--xla_a=1"], topology="2x2")
    assert data["entries"][0]["findings"][0]["subjects"]
    return data


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("baseline") / "baseline.json"


def refusal(file: Path, text: str) -> str:
    """Return the one line with which a baseline is refused."""
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_baseline(file)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{file} ")


# ---- the cases


PATHS = {
    "1": "entries[0].transfers[2].mechanisms: unknown key '0.7389158801403842'; known are dma, kernel",
    "3": "entries[0].transfers[2].line: expected a whole number of 0 or more, found -1",
    "5": "entries[0].bytes_per_step.d2h: expected a whole number of 0 or more, found -0.0",
    "6": "entries[0].transfers[0].loop_depth: expected a whole number of 0 or more, found Infinity",
    "8": "entries[0].findings[1].code: expected the code of a rule, such as HLO110, found 1e-320",
    "9": "entries[0].memory.device_bytes: expected a whole number of 0 or more or null, found '\\x1b[31m'",
    "10": "entries[0].transfers[2].count is missing",
    "12": "entries[0].made.d2h_gbps: expected an amount of 0 or more or null, found {'a': 1}",
    "13": "entries[0].transfers[0].shape[0]: expected a whole number of 0 or more, found Infinity",
    "15": "entries[0].transfers[1].direction: expected d2h or h2d, found Infinity",
    "16": "entries[0].transfers[1].function: expected text or null, found 1e+308",
    "18": "entries[0].transfers[0].function: expected text or null, found -1",
    "19": "entries[0].memory.device_bytes: expected a whole number of 0 or more or null, found ''",
    "20": "entries[0].transfers[0].name: expected text or null, found NaN",
    "21": "entries[0].findings[2].count: expected a whole number of 0 or more, found Infinity",
    "23": "entries[0].findings[1].code: expected the code of a rule, such as HLO110, found NaN",
}


def test_every_damaged_baseline_has_its_line() -> None:
    assert {path.stem for path in CASES.iterdir()} == set(PATHS)


@pytest.mark.parametrize("name", PATHS)
def test_a_damaged_baseline_is_one_line_with_the_field_and_exit_code_2(name: str) -> None:
    arguments = ["check", str(SMALL), "--target", "gb200", "--as", "s", "--baseline", str(CASES / f"{name}.json")]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "internal error" not in result.stderr
    assert PATHS[name] in result.stderr


# ---- field by field


def put(data: Any, path: tuple[str | int, ...], value: object) -> Any:
    changed = copy.deepcopy(data)
    inside = changed
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    return changed


def fields(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every field with its path."""
    if path:
        yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in inner:
        yield from fields(item, (*path, step))


def written(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 30, "1" + "0" * 5000])
def test_no_number_is_anything_but_finite(valid: dict[str, Any], file: Path, word: str) -> None:
    for path, value in fields(valid):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            said = refusal(file, json.dumps(put(valid, path, "@@")).replace('"@@"', word))
            assert said.startswith(f"is not a whole hloinspect.baseline/1: {written(path)}: expected ")
            assert f", found {word[:20]}" in said


def test_every_field_refuses_another_type_and_a_negative_amount_by_its_path(valid: dict[str, Any], file: Path) -> None:
    for path, value in fields(valid):
        if path == ("schema",):
            continue
        wrong: list[object] = [True, -1]
        wrong += [[]] if not isinstance(value, list) else [{}]
        wrong += [] if isinstance(value, (str, type(None))) else ["text"]
        for other in wrong:
            said = refusal(file, json.dumps(put(valid, path, other)))
            assert said.startswith(f"is not a whole hloinspect.baseline/1: {written(path)}"), said


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (("kind",), "predicted or measured"),
        (("memory", "source"), "artifacts, estimated or unknown"),
        (("transfers", 0, "direction"), "d2h or h2d"),
        (("findings", 0, "severity"), "error, warning or info"),
    ],
)
def test_a_word_of_no_closed_set_is_refused_with_the_set(
    valid: dict[str, Any], file: Path, path: tuple[str | int, ...], known: str
) -> None:
    said = refusal(file, json.dumps(put(valid, ("entries", 0, *path), "hiden")))
    assert f"{written(('entries', 0, *path))}: expected {known}, found 'hiden'" in said


@pytest.mark.parametrize("table", [("verdicts",), ("transfers", 0, "verdicts"), ("transfers", 0, "mechanisms")])
def test_a_count_of_an_unknown_word_is_refused(valid: dict[str, Any], file: Path, table: tuple[str | int, ...]) -> None:
    said = refusal(file, json.dumps(put(valid, ("entries", 0, *table, "hiden"), 1)))
    assert f"{written(('entries', 0, *table))}: unknown key 'hiden'" in said


def test_missing_misspelt_and_newer_keys_are_distinguished(valid: dict[str, Any], file: Path) -> None:
    for path, value in fields(valid):
        if not isinstance(path[-1], str) or path in (("schema",), ("entries",)):
            continue
        changed = put(valid, path, value)
        inside = changed
        for step in path[:-1]:
            inside = inside[step]
        del inside[path[-1]]
        older = ("origin", "subjects", "configuration", "classes_ms")
        if path[-1] in older or path[-2] in ("verdicts", "mechanisms"):
            continue  # an older version wrote none, and a count of none is left out
        assert (
            f"{written(path)} is missing; if an older version wrote it, delete it and make it with `hloinspect check"
            in (refusal(file, json.dumps(changed)))
        )
        inside[f"{path[-1]}s"] = value
        said = refusal(file, json.dumps(changed))
        assert f"{written(path[:-1])}: unknown key '{path[-1]}s': did you mean {path[-1]}?" in said
        del inside[f"{path[-1]}s"]
    newer = put(valid, ("entries", 0, "energy"), 1)
    said = refusal(file, json.dumps(newer))
    assert "entries[0]: unknown key 'energy'; known are step, target," in said
    newer = put(newer, ("entries", 0, "made", "hloinspect"), "12.3")
    said = refusal(file, json.dumps(newer))
    assert "entries[0] has the key 'energy', which hloinspect 12.3 knows and this version (" in said
    assert "older" not in said


def test_what_is_there_twice_is_refused(valid: dict[str, Any], file: Path) -> None:
    twice = {**valid, "entries": valid["entries"] * 2}
    assert refusal(file, json.dumps(twice)) == "has two entries for step on 1 x gb200, predicted: delete one of them"
    text = json.dumps(valid).replace('"step": ', '"step": "other", "step": ', 1)
    assert refusal(file, text) == "is not a baseline: the key 'step' is there twice"


def test_a_key_that_is_there_twice_is_found_in_one_pass() -> None:
    compared = []

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(self)
            return str.__eq__(self, other)

    keys = [Key(f"k{number}") for number in range(1000)]
    with pytest.raises(ValueError, match="'k999' is there twice"):
        decoding._object([(key, None) for key in (*keys, Key("k999"))])
    assert len(compared) < 10 * len(keys)


# ---- any damage


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=4,
)


def rounded(value: Any) -> Any:
    """Return JSON with its fractions as a baseline is written: with six digits."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_change_is_loaded_as_it_is_written_or_refused_in_one_line(
    valid: dict[str, Any], file: Path, data: st.DataObject
) -> None:
    path, _ = data.draw(st.sampled_from(list(fields(valid))))
    changed = put(valid, path, data.draw(junk | st.sampled_from([value for _, value in fields(valid)])))
    file.write_text(json.dumps(changed), encoding="utf-8")
    said, loaded = "", None
    try:
        loaded = load_baseline(file)
    except InputError as error:
        said = str(error)
    if loaded is None:
        assert "is not a" in said
        assert "\n" not in said
    else:
        assert json.loads(to_json(loaded)) == rounded(changed)
