"""Files that people may touch: whatever is done to one field of one is refused in one line, or changes nothing.

Another type, no finite number, a negative size, a word of no closed set, a key that is missing or misspelt: never an
internal error, and never a silent pass.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hloinspect.cli import main
from hloinspect.errors import HloInspectError
from tests.support.damaged_files import (
    Kind,
    Path_,
    baseline,
    fields_of,
    fits,
    manifest,
    project,
    target,
    with_field,
    with_key,
    without_field,
)
from tests.support.gate_samples import SMALL, compiled_directory
from tests.support.thorough import examples

MAKERS: tuple[Callable[[], Kind], ...] = (baseline, manifest, project, target)
KINDS: dict[str, Callable[[], Kind]] = {maker.__name__: maker for maker in MAKERS}

OTHERS: tuple[object, ...] = (True, 7, 2.5, "text", [], {}, None)
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 30, "-1" + "0" * 30)
IN_TOML = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
DAMAGES = ("type", "number", "negative", "word", "drop", "misspell")
MARK = "@@"

WORLD = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])


@functools.cache
def sample(name: str) -> Kind:
    """The kind of file, with its documents, which take a while to make."""
    return KINDS[name]()


@functools.cache
def fields(name: str, number: int) -> tuple[tuple[Path_, Any], ...]:
    """The fields of a document that are looked at."""
    kind = sample(name)
    found = fields_of(kind.documents[number])
    return tuple((path, value) for path, value in found if not fits(path, kind.skip))


def dotted(name: str, path: Path_) -> str:
    """A field as an error names it."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return text.removeprefix("tool.hloinspect").lstrip(".") if name == "project" else text


def form(value: object) -> str:
    """The type of a value in JSON and TOML; ``whole`` and ``number`` are both numbers."""
    names: dict[type, str] = {bool: "bool", int: "whole", float: "number", str: "text", list: "list", dict: "table"}
    return names.get(type(value), "null")


def damaged(data: st.DataObject, kind: Kind, document: Any, path: Path_, value: Any) -> tuple[Any, str, bool] | None:
    """A document with a damage, the text of it, and whether it may be taken; None where the damage does not go with
    the field."""
    damage = data.draw(st.sampled_from(DAMAGES))
    free = fits(path, kind.free) or fits(path[:-1], kind.free)
    if damage == "type":
        other = data.draw(st.sampled_from(OTHERS))
        if form(other) == form(value) or (other is None and not kind.has_null):
            return None
        numbers = (form(value), form(other))
        if numbers == ("number", "whole") or (numbers == ("whole", "number") and not kind.has_null):
            return None  # every whole number is a number; in TOML an amount may be written as one
        allowed = (other is None and fits(path, kind.nullable)) or fits(path, kind.one_or_many)
        allowed = allowed or (value is None and fits(path, kind.nullable))
        allowed = allowed or (fits(path, kind.scalars) and not isinstance(other, list | dict | None))
        changed = with_field(document, path, other)
        return changed, kind.write(changed), allowed
    if damage == "number":
        word = data.draw(st.sampled_from(NO_NUMBERS))
        if kind.has_null:
            text = kind.write(with_field(document, path, MARK)).replace(json.dumps(MARK), word)
        else:
            text = kind.write(with_field(document, path, f"@{IN_TOML.get(word, word)}"))
        return None, text, False
    if damage == "negative":
        if isinstance(value, bool) or not isinstance(value, int | float) or fits(path, kind.scalars):
            return None
        other = data.draw(st.sampled_from([-1, -abs(value) or -1]))
        changed = with_field(document, path, other)
        return changed, kind.write(changed), other == -1 and fits(path, kind.signed)
    if damage == "word":
        if not isinstance(value, str) or not fits(path, kind.closed):
            return None
        other = data.draw(st.sampled_from(["hiden", "", f"{value}s", f"{value.title()}x"]))
        changed = with_field(document, path, other)
        return changed, kind.write(changed), False
    if not isinstance(path[-1], str):
        return None
    if damage == "drop":
        changed = without_field(document, path)
        return changed, kind.write(changed), free or fits(path, kind.optional)
    key = path[-1]
    wrong = data.draw(st.sampled_from([f"{key}s", key[:-1], key[1:], key[:1] + key, key.upper() + "_", f"my_{key}"]))
    changed = with_key(document, path, wrong)
    return changed, kind.write(changed), free


def same(written: Any, read: Any) -> bool:
    """Whether what is read is what is written, where what may be absent is absent or empty."""
    if isinstance(written, dict) and isinstance(read, dict):
        more = [value for key, value in read.items() if key not in written]
        empty = all(value in (None, False, [], {}) or _empty(value) for value in more)
        return empty and all(key in read and same(value, read[key]) for key, value in written.items())
    if isinstance(written, list) and isinstance(read, list):
        return len(written) == len(read) and all(map(same, written, read))
    if isinstance(written, float) or isinstance(read, float):
        return bool(abs(written - read) < 1e-5)
    return type(written) is type(read) and written == read


def _empty(value: object) -> bool:
    return isinstance(value, dict) and all(each is None for each in value.values())


def refusal(kind: Kind, folder: Path, text: str) -> tuple[str, Any]:
    """The line with which a file is refused, or "" and what it means."""
    folder.mkdir(exist_ok=True)
    (folder / kind.file).write_text(text, encoding="utf-8")
    try:
        return "", kind.read(folder)
    except HloInspectError as error:
        return str(error), None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("touched")


@pytest.mark.parametrize("name", KINDS)
def test_every_document_is_taken_as_it_is(name: str, folder: Path) -> None:
    kind = sample(name)
    for document in kind.documents:
        said, read = refusal(kind, folder / "read", kind.write(document))
        assert said == ""
        assert read is None or same(document, read)


@pytest.mark.timeout(examples(600, 3_600))
@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(WORLD, max_examples=examples(200, 20_000))
def test_any_change_of_one_field_is_refused_in_one_line_or_changes_nothing(
    name: str, folder: Path, data: st.DataObject
) -> None:
    kind = sample(name)
    number = data.draw(st.integers(0, len(kind.documents) - 1))
    among = fields(name, number)
    path, value = among[data.draw(st.integers(0, len(among) - 1))]
    found = damaged(data, kind, kind.documents[number], path, value)
    assume(found is not None)
    changed, text, allowed = found
    said, read = refusal(kind, folder / "read", text)
    if not said:
        assert allowed, f"{dotted(name, path)} passes: {text[:2000]}"
        assert read is None or same(changed, read)
        return
    assert "\n" not in said
    assert said.isprintable()
    assert str(folder / "read" / kind.file) in said
    assert dotted(name, path) in said or dotted(name, path[:-1]) in said, said


COMMANDS = {
    "baseline": lambda folder: ["check", str(SMALL), "--target", "gb200", "--baseline", str(folder / "baseline.json")],
    "manifest": lambda folder: ["inspect", str(folder)],
    "project": lambda folder: ["check"],
    "target": lambda folder: ["inspect", str(SMALL), "--target", str(folder / "mine.toml")],
}


@pytest.mark.timeout(examples(600, 3_600))
@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(WORLD, max_examples=examples(25, 1_000))
def test_the_command_ends_with_one_line_and_exit_code_2(name: str, folder: Path, data: st.DataObject) -> None:
    kind, home = sample(name), made(name, folder)
    number = data.draw(st.integers(0, len(kind.documents) - 1))
    among = fields(name, number)
    path, value = among[data.draw(st.integers(0, len(among) - 1))]
    found = damaged(data, kind, kind.documents[number], path, value)
    assume(found is not None and not found[2])
    (home / kind.file).write_text(found[1], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        result = CliRunner().invoke(main, COMMANDS[name](home))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert "internal error" not in result.stderr
    assert kind.file in result.stderr


def made(name: str, folder: Path) -> Path:
    """A folder that the command finds a file in; a manifest's has the files of a compilation."""
    home = folder / name
    if not home.exists() and name == "manifest":
        compiled_directory(home, "gb200_save")
    home.mkdir(exist_ok=True)
    return home


def test_a_link_to_a_device_without_an_end_is_refused_by_every_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled_directory(tmp_path / "made", "gb200_save")
    (made / "manifest.json").unlink()
    for link in (made / "manifest.json", tmp_path / "b.json", tmp_path / "t.toml"):
        link.symlink_to("/dev/zero")
    monkeypatch.chdir(tmp_path)
    commands = [
        ["inspect", "made/module.hlo.txt", "--target", "t.toml"],
        ["inspect", str(SMALL), "--target", "t.toml"],
        ["check", str(SMALL), "--target", "gb200", "--baseline", "b.json"],
        ["check", str(SMALL), "--target", "gb200", "--baseline", "b.json", "--update-baseline"],
        ["compile", "no_such_package:step", "--target", "gb200", "--autotune-results", "b.json", "-o", "out"],
    ]
    for command in commands:
        result = CliRunner().invoke(main, command)
        assert (result.exit_code, result.output.count("\n")) == (2, 1), (command, result.output)
        assert result.output.startswith("hloinspect: error: ")
    assert (tmp_path / "b.json").is_symlink()
