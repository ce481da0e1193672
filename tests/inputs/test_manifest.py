"""The directory of a result, which must be complete."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from hloinspect.compile.launch import publish, staging_in
from hloinspect.errors import InputError
from hloinspect.inputs.manifest import SCHEMA, Manifest, OffloadName, load_result
from hloinspect.report.program import assigned_on_device

TEXT = "HloModule m, is_scheduled=true\n"
MANIFEST = Manifest(
    schema=SCHEMA,
    step="train.py:step",
    target="gb200",
    platform="gpu",
    devices=8,
    topology="1x2x4",
    module_name="jit_step",
    module_sha256=hashlib.sha256(TEXT.encode()).hexdigest(),
    versions={"hloinspect": "0.1.0", "jax": "0.12.0", "jaxlib": "0.12.0", "python": "3.13.0", "plugin": None},
    xla_flags=("--xla_foo",),
    compiler_options={"xla_foo": True},
    memory={
        **{f"{where}{part}_size_in_bytes": 0 for where in ("", "host_") for part in ("argument", "output", "alias")},
        **{"temp_size_in_bytes": 7, "host_temp_size_in_bytes": 0},
    },
    seconds={"import": 1.0, "trace_and_lower": 0.5, "compile": 1.5},
    peak_rss_bytes=9,
    offload_names=(OffloadName("hid", "bfloat16", (2, 3), "train.py", 4, 8, "mlp"),),
    notes=("a note",),
)


def write(directory: Path, manifest: str | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "module.hlo.txt").write_text(TEXT)
    (directory / "module.hlo.pb").write_bytes(b"\x0a\x01m")
    (directory / "module.stablehlo.mlir").write_text("module {}")
    (directory / "manifest.json").write_text(MANIFEST.to_json() if manifest is None else manifest)
    return directory


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    result = load_result(write(tmp_path))
    assert result.manifest == MANIFEST
    assert result.module_text.read_text() == TEXT
    assert result.thunk_sequence is None


def test_a_directory_without_a_manifest_is_not_a_result(tmp_path: Path) -> None:
    (write(tmp_path) / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        load_result(tmp_path)
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        load_result(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"schema": "a", "schema": "b"}', "the key 'schema' is there twice"),
        ("[1]", "has schema null"),
        ('{"schema": "hloinspect.manifest/99"}', "reads 'hloinspect.manifest/1'"),
        (json.dumps({"schema": SCHEMA}), "is not a whole"),
        (json.dumps({**dataclasses.asdict(MANIFEST), "devices": "many"}), "is not a whole"),
        (json.dumps({**dataclasses.asdict(MANIFEST), "offload_names": [{"name": "x"}]}), "is not a whole"),
        (json.dumps({**dataclasses.asdict(MANIFEST), "memory": None}), "is not a whole"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_one_clear_error(tmp_path: Path, manifest: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_result(write(tmp_path, manifest))
    assert "\n" not in str(caught.value)


def test_a_module_that_the_manifest_does_not_describe_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "module.hlo.txt").write_text(TEXT + "more")
    with pytest.raises(InputError, match="checksum differs"):
        load_result(tmp_path)
    (tmp_path / "module.hlo.txt").unlink()
    with pytest.raises(InputError, match="is missing"):
        load_result(tmp_path)


def test_a_failure_leaves_the_users_files_and_removes_what_was_begun(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")

    def fail(out: Path) -> None:
        with staging_in(out) as staging:
            (staging / "module.hlo.txt").write_text(TEXT)
            raise ZeroDivisionError

    for out in (mine, tmp_path / "new" / "deep"):
        with pytest.raises(ZeroDivisionError):
            fail(out)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


def test_files_of_the_same_name_that_are_not_ours_are_never_replaced(tmp_path: Path) -> None:
    for text in ('{"name": "somebody else\'s"}', "[" * 100_000):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(InputError, match=r"holds manifest\.json"), staging_in(tmp_path):
            pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"), staging_in(tmp_path / "file"):
        pass


def test_an_earlier_result_is_replaced_whole(tmp_path: Path) -> None:
    out = write(tmp_path / "out")
    (out / "thunk_sequence.txt").write_text("of the earlier one")
    with staging_in(out) as staging:
        write(staging)
        publish(staging, out)
    assert load_result(out).thunk_sequence is None
    assert not list(out.glob(".hloinspect-*"))


def test_figures_of_libtpu_that_cannot_be_right_are_not_taken() -> None:
    memory = {"argument_size_in_bytes": 3 << 30, "temp_size_in_bytes": 15 << 30}
    tpu = dataclasses.replace(MANIFEST, target="v5e", platform="tpu", memory=memory)
    size, limits = assigned_on_device(tpu)
    assert size is None
    assert "add up to 18 GiB, more than a v5e has" in limits[0]
    assert assigned_on_device(dataclasses.replace(tpu, target="v5p")) == (18 << 30, ())
    assert assigned_on_device(dataclasses.replace(tpu, target="our own TPU")) == (18 << 30, ())
    assert assigned_on_device(
        dataclasses.replace(tpu, target="h100", platform="gpu", memory={"temp_size_in_bytes": 90 << 30})
    ) == (
        90 << 30,
        (),
    )


def test_a_manifest_of_before_the_keys_were_renamed_is_refused_with_the_command_that_makes_it_anew(
    tmp_path: Path,
) -> None:
    old = {**dataclasses.asdict(MANIFEST), "asked": {"asks": []}}
    del old["requested"]
    with pytest.raises(InputError) as caught:
        load_result(write(tmp_path, json.dumps(old)))
    assert str(caught.value) == (
        f"{tmp_path}/manifest.json is not a whole hloinspect.manifest/1: it has the key 'asked' of an older "
        f"version; make it anew: `hloinspect compile train.py:step --target gb200 --devices 8 -o {tmp_path}`"
    )


def test_a_key_of_a_newer_version_is_named_with_that_version(tmp_path: Path) -> None:
    new = {**dataclasses.asdict(MANIFEST), "energy": 3}
    new["versions"]["hloinspect"] = "7.1"
    with pytest.raises(
        InputError, match=r"it has the key 'energy', which hloinspect 7\.1 knows and this version \("
    ) as caught:
        load_result(write(tmp_path, json.dumps(new)))
    assert "older" not in str(caught.value)
