"""The decoder by itself: what it takes, and how it names what it does not take."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

import pytest

from hloinspect.decoding import (
    Bounds,
    Complete,
    Count,
    Fault,
    Line,
    NonNegative,
    Positive,
    decode,
    newer_version,
    parse_json,
    parse_toml,
    read_text,
    shown,
)

Word = Literal["hidden", "exposed"]


class Table(TypedDict):
    value: Annotated[float, Bounds(1, 9, "a number from 1 to 9")]
    note: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Item:
    word: Word
    bytes: Count
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    count: Positive
    ms: NonNegative | None = None
    items: tuple[Item, ...] = ()
    by_name: dict[str, tuple[Item, ...]] = field(default_factory=dict)
    counts: Annotated[dict[Word, Count], Complete(("hidden",), or_empty=True)] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()
    figure: float | Table = 1.0
    title: Line = "x"


LEAST = {"name": "n", "count": 1}
ITEM = {"word": "hidden", "bytes": 3}


def said(data: object, **more: object) -> str:
    with pytest.raises(Fault) as caught:
        decode(data, Record, **more)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_record_is_built_with_its_defaults() -> None:
    data = {**LEAST, "ms": 3, "items": [{**ITEM, "shape": [1, 2]}], "pairs": [["a", "b"]], "figure": {"value": 2}}
    assert decode(data, Record) == Record(
        "n", 1, 3.0, (Item("hidden", 3, (1, 2)),), pairs=(("a", "b"),), figure={"value": 2.0}
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": 3}, "name: expected text, found 3"),
        ({"count": True}, "count: expected a whole number of 1 or more, found true"),
        ({"count": 1.0}, "count: expected a whole number of 1 or more, found 1.0"),
        ({"count": 0}, "count: expected a whole number of 1 or more, found 0"),
        ({"count": 2**63}, "count: expected a whole number of 1 or more, found 9223372036854775808"),
        ({"ms": -0.5}, "ms: expected an amount of 0 or more, found -0.5"),
        ({"ms": "1"}, "ms: expected an amount of 0 or more or null, found '1'"),
        ({"items": {}}, "items: expected a list, found {}"),
        ({"items": [ITEM, 3]}, "items[1]: expected an object, found 3"),
        ({"items": [{**ITEM, "word": "hiden"}]}, "items[0].word: expected hidden or exposed, found 'hiden'"),
        ({"items": [{**ITEM, "shape": [1, 2**63]}]}, "items[0].shape[1]: expected a whole number of 19 digits at most"),
        ({"items": [{"word": "hidden"}]}, "items[0].bytes is missing"),
        ({"items": [{**ITEM, "shap": []}]}, "items[0]: unknown key 'shap': did you mean shape?"),
        ({"items": [{"word": "hidden", "byte": 3}]}, "items[0]: unknown key 'byte': did you mean bytes?"),
        (
            {"by_name": {"a": [ITEM], "train.py:step": [{**ITEM, "bytes": -1}]}},
            "by_name['train.py:step'][0].bytes: expected a whole number of 0 or more, found -1",
        ),
        ({"by_name": {"a": 3, "b": []}}, "by_name.a: expected a list, found 3"),
        ({"by_name": {"\x1b[31m": 3}}, "by_name['\\x1b[31m']: expected a list, found 3"),
        ({"counts": {"hiden": 1}}, "counts: unknown key 'hiden': did you mean hidden?"),
        ({"counts": {"exposed": 1}}, "counts.hidden is missing"),
        ({"counts": {"hidden": None}}, "counts.hidden: expected a whole number of 0 or more, found null"),
        ({"pairs": [["a", "b", "c"]]}, "pairs[0]: expected a list, found ['a', 'b', 'c']"),
        ({"pairs": [["a", 3]]}, "pairs[0][1]: expected text, found 3"),
        ({"figure": "x"}, "figure: expected a number or an object, found 'x'"),
        ({"figure": {"value": 10}}, "figure.value: expected a number from 1 to 9, found 10"),
        ({"figure": {"note": "x"}}, "figure.value is missing"),
        ({"title": " "}, "title: expected one line of text, found ' '"),
        ({"title": "a\nb"}, "title: expected one line of text, found 'a\\nb'"),
        ({"zzz": 1}, "unknown key 'zzz'; known are name, count, ms, items, by_name, counts, pairs, figure, title"),
    ],
)
def test_a_fault_is_named_by_its_field(change: dict[str, object], fault: str) -> None:
    found = said({**LEAST, **change})
    assert found.startswith(fault)
    assert found.isprintable()


def test_what_is_no_record_at_all_is_said() -> None:
    assert said([]) == "expected an object, found []"
    assert said(3, toml=True) == "expected a table, found 3"
    assert said({**LEAST, "ms": "1"}, toml=True) == "ms: expected an amount of 0 or more, found '1'"  # TOML has no null


def test_a_key_of_a_newer_and_of_an_older_version_is_told_apart_from_a_misspelt_one() -> None:
    data = {**LEAST, "itemz": []}
    assert said(data) == "unknown key 'itemz': did you mean items?"
    newer = "it has the key 'itemz', which hloinspect 9.1 knows and this version ("
    assert said(data, newer="9.1").startswith(newer)
    assert said(data, older=("itemz",)) == "it has the key 'itemz' of an older version"


@pytest.mark.parametrize("key", ["count", "ms", "items", "by_name", "counts", "pairs"])
def test_half_a_character_where_no_text_is_expected_is_a_fault(key: str) -> None:
    # JSON can spell half of a pair of UTF-16, which no encoder takes: msgspec raises UnicodeEncodeError for it
    found = said(parse_json(json.dumps({**LEAST, key: "\ud800"})))
    assert found.startswith(f"{key}: expected ")
    assert found.isprintable()
    inner = json.dumps({**LEAST, "items": [{**ITEM, "bytes": "\udfff"}]})
    assert said(parse_json(inner)).startswith("items[0].bytes: expected a whole number of 0 or more, found ")


def test_a_file_without_an_end_is_too_large() -> None:
    with pytest.raises(ValueError, match=r"it is too large \(64 MiB at most\)"):
        read_text(Path("/dev/zero"))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 30, "-1" + "0" * 5000])
def test_what_is_no_finite_number_fits_no_field(word: str) -> None:
    for key in ("ms", "count", "name", "figure", "items"):
        found = said({**LEAST, key: parse_json(word)})
        assert found.startswith(f"{key}: expected ")
        assert f"found {word[:30]}" in found


def test_numbers_of_toml_are_finite_too() -> None:
    for word in ("nan", "inf", "-inf", "1e400"):
        assert said({**LEAST, **parse_toml(f"ms = {word}")}).startswith("ms: expected ")


def test_free_text_stays_free() -> None:
    text = "any\n\x1b[31m text \u202e"
    assert decode({**LEAST, "name": text}, Record).name == text


def test_what_is_shown_of_a_value_is_one_short_line() -> None:
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "a value that is too large"
    assert shown("x" * 1000) == f"'{'x' * 59}..."
    assert shown("\x1b[31m") == "'\\x1b[31m'"


@pytest.mark.parametrize(("version", "newer"), [("0.0.1", ""), ("99", "99"), ("99.dev1", "99.dev1"), (3, ""), ("", "")])
def test_a_newer_version_is_known_by_its_numbers(version: object, newer: str) -> None:
    assert newer_version(version) == newer


def test_the_decoder_is_not_loaded_by_what_decodes_nothing() -> None:
    code = (
        "import sys, hloinspect\n"
        "from tests.support.gate_samples import SMALL\n"
        "hloinspect.inspect(str(SMALL), target='gb200')\n"
        "assert 'msgspec' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
