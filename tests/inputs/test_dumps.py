"""Directories of --xla_dump_to: which module is chosen, and what the files that belong to it say."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hloinspect.cli import main
from hloinspect.errors import InputError
from hloinspect.hardware import load_target, target_names
from hloinspect.inputs.classify import DUMP, classify
from hloinspect.inputs.dumps import (
    choose_module,
    dumped_device,
    dumped_memory,
    dumped_modules,
    other_keys,
    touches_host,
)
from tests.support.hlo_samples import ROOT
from tests.support.json_schemas import faults

FIXTURES = ROOT / "fixtures" / "jax0.12.0.1"
OFFLOAD, SAVE, TPU = "gb200_offload_scan", "gb200_save", "v6e_offload_scan"
GPU_NAME = "{key}.sm_10.0a_gpu_after_optimizations"
HID_BYTES = 2 * 256 * 2048 * 2


def module_bytes(fixture: str, spelling: str = "txt") -> bytes:
    return gzip.decompress((FIXTURES / fixture / f"module.hlo.{spelling}.gz").read_bytes())


@pytest.fixture
def dump(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a fixture's module to the dump directory, named as by XLA, and returns the file."""
    folder = tmp_path / "dump"
    folder.mkdir()

    def put(key: str, fixture: str, *, name: str = GPU_NAME, ending: str = ".txt", thunks: bool = False) -> Path:
        data = module_bytes(fixture, "pb" if ".pb" in ending else "txt")
        packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(ending).suffix, bytes)(data)
        path = folder / f"{name.format(key=key)}{ending}"
        path.write_bytes(packed)
        if thunks:
            shutil.copyfile(FIXTURES / fixture / "thunk_sequence.txt", folder / f"{key}.thunk_sequence.txt")
            metadata = gzip.decompress((FIXTURES / fixture / "thunk_metadata.txt.gz").read_bytes())
            (folder / f"{key}.thunk_metadata.txt").write_bytes(metadata)
        return path

    return put


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def report(*arguments: str | Path, code: int | None = None) -> dict[str, Any]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code in ((0, 3) if code is None else (code,)), result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert faults(found, "report") == []
    return found


def keys(folder: Path) -> list[str]:
    return [module.key for module in dumped_modules(folder)]


# ---- which files are modules


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("module_0001.jit_f.sm_10.0a_gpu_after_optimizations.txt", "module_0001.jit_f"),
        ("module_0001.jit_f.sm_9.0_gpu_after_optimizations.txt", "module_0001.jit_f"),
        ("module_0007.jit__f_with.dots.sm_8.0_gpu_after_optimizations.hlo", "module_0007.jit__f_with.dots"),
        ("module_0001.jit_f.gfx942_gpu_after_optimizations.txt", "module_0001.jit_f"),
        ("module_0001.jit_f.gpu_after_optimizations.txt", "module_0001.jit_f"),
        ("module_0001.jit_f.cpu_after_optimizations.txt", "module_0001.jit_f"),
        ("module_0023.jit_train_step.after_optimizations.txt", "module_0023.jit_train_step"),  # of a TPU
        ("module_0001.jit_f.sm_9.0_gpu_after_optimizations.hlo_proto.pb", "module_0001.jit_f"),
        ("module_0001.jit_f.sm_9.0_gpu_after_optimizations.hlo.pb", "module_0001.jit_f"),
        ("module_0001.jit_f.sm_9.0_gpu_after_optimizations.txt.gz", "module_0001.jit_f"),
        ("module_0001.jit_f.sm_9.0_gpu_after_optimizations.hlo_proto.pb.zst", "module_0001.jit_f"),
    ],
)
def test_an_optimized_module_is_known_by_its_name(tmp_path: Path, name: str, key: str) -> None:
    (tmp_path / name).write_text("HloModule f")
    assert keys(tmp_path) == [key]
    assert classify(str(tmp_path)).kind == DUMP


@pytest.mark.parametrize(
    "name",
    [
        "module_0001.jit_f.before_optimizations.txt",
        "module_0001.jit_f.sm_9.0_gpu_after_optimizations-buffer-assignment.txt",
        "module_0001.jit_f.sm_9.0_gpu_after_optimizations-memory-usage-report.txt",
        "module_0001.jit_f.sm_9.0_gpu_after_optimizations-live-range.txt",
        "module_0023.jit_f.after_optimizations_after_buffer_assignment.txt",
        "module_0023.jit_f.after_optimizations_before_buffer_assignment.txt",
        "module_0001.jit_f.thunk_sequence.txt",
        "module_0001.jit_f.sm_9.0_gpu_after_optimizations.dot",
        "after_optimizations.txt",
    ],
)
def test_other_files_of_a_dump_are_no_modules(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("HloModule f")
    assert keys(tmp_path) == []
    with pytest.raises(InputError, match="holds neither"):
        classify(str(tmp_path))


def test_a_directory_with_the_name_of_a_module_is_none(tmp_path: Path) -> None:
    (tmp_path / "module_0001.jit_f.sm_9.0_gpu_after_optimizations.txt").mkdir()
    assert keys(tmp_path) == []


# ---- which of them is chosen


def test_the_largest_module_with_host_memory_is_taken_and_the_others_are_named(dump: Callable[..., Path]) -> None:
    large = dump("module_0003.jit_init", SAVE)
    large.write_bytes(large.read_bytes() + b"\n" * 1_000_000)
    dump("module_0001.jit_small", "gb200_host_stack_donated")
    wanted = dump("module_0002.jit_train_step", OFFLOAD)
    found = report(wanted.parent, "--target", "gb200")
    assert found["input"] == {**found["input"], "path": str(wanted), "kind": "dump"}
    assert [(t["direction"], t["executions"], t["bytes"]) for t in found["transfers"]] == [
        ("d2h", 4, HID_BYTES),
        ("h2d", 4, HID_BYTES),
    ]
    (limit,) = [limit for limit in found["limits"] if "--module" in limit]
    assert "module_0002.jit_train_step was looked at" in limit
    assert "module_0001.jit_small, module_0003.jit_init" in limit


def test_without_host_memory_anywhere_the_largest_module_is_taken(dump: Callable[..., Path]) -> None:
    dump("module_0001.jit_a", "gb200_remat")
    largest = dump("module_0002.jit_b", SAVE)
    assert (
        largest.stat().st_size
        > (largest.parent / "module_0001.jit_a.sm_10.0a_gpu_after_optimizations.txt").stat().st_size
    )
    found = report(largest.parent, "--target", "gb200", code=0)
    assert found["input"]["path"] == str(largest)
    assert found["transfers"] == []


def test_one_module_alone_leaves_nothing_to_say_about_others(dump: Callable[..., Path]) -> None:
    folder = dump("module_0001.jit_train_step", OFFLOAD).parent
    assert not [limit for limit in report(folder, "--target", "gb200")["limits"] if "--module" in limit]


def test_of_many_others_the_first_six_are_named(dump: Callable[..., Path]) -> None:
    folder = dump("module_0000.jit_train_step", OFFLOAD).parent
    for number in range(1, 10):
        (folder / f"module_{number:04}.jit_tiny.sm_10.0a_gpu_after_optimizations.txt").write_text("HloModule tiny")
    (limit,) = [limit for limit in report(folder)["limits"] if "--module" in limit]
    assert limit.endswith("module_0006.jit_tiny and 3 more")


@pytest.mark.parametrize("ending", [".hlo_proto.pb", ".hlo.pb", ".hlo_proto.pb.gz"])
def test_of_a_text_and_a_proto_of_one_module_the_text_is_taken(dump: Callable[..., Path], ending: str) -> None:
    text = dump("module_0001.jit_train_step", OFFLOAD)
    dump("module_0001.jit_train_step", OFFLOAD, ending=ending)
    (module,) = dumped_modules(text.parent)
    assert module.module == text


@pytest.mark.parametrize("packed", [".txt.gz", ".txt.xz"])
def test_of_a_plain_and_a_packed_text_the_plain_one_is_taken(dump: Callable[..., Path], packed: str) -> None:
    text = dump("module_0001.jit_train_step", OFFLOAD)
    dump("module_0001.jit_train_step", OFFLOAD, ending=packed)
    (module,) = dumped_modules(text.parent)
    assert module.module == text


@pytest.mark.parametrize("ending", [".txt.gz", ".txt.xz", ".hlo_proto.pb", ".hlo_proto.pb.gz", ".hlo.pb.xz"])
def test_packed_texts_and_protos_say_the_same_as_a_text(dump: Callable[..., Path], ending: str) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD, ending=ending, thunks=True)
    found = report(path.parent, "--target", "gb200")
    assert found["input"]["path"] == str(path)
    assert [(t["direction"], t["bytes"], t["mechanism"], t["stream"]) for t in found["transfers"]] == [
        ("d2h", HID_BYTES, "dma", "memcpy_d2h_stream"),
        ("h2d", HID_BYTES, "dma", "memcpy_h2d_stream"),
    ]


def test_host_memory_is_seen_across_the_seams_of_what_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "module.txt"
    for before in range((1 << 20) - 5, (1 << 20) + 2):
        path.write_bytes(b" " * before + b"S(5)")
        assert touches_host(path)
    path.write_bytes(b"S(5" + b" " * (1 << 20) + b")S(6)")
    assert not touches_host(path)


def test_a_tpu_dump_is_read_without_a_target_of_its_own(dump: Callable[..., Path]) -> None:
    path = dump("module_0023.jit_train_step", TPU, name="{key}.after_optimizations")
    found = report(path.parent, "--target", "v6e", "--link", "30GB/s")
    assert found["module"]["platform"] == "tpu"
    assert {t["direction"] for t in found["transfers"]} == {"d2h", "h2d"}
    assert report(path.parent)["target"] is None


# ---- --module


@pytest.mark.parametrize("wanted", ["1", "0001", "module_0001", "jit_save", "module_0001.jit_save"])
def test_a_module_is_picked_by_number_name_or_both(dump: Callable[..., Path], wanted: str) -> None:
    picked = dump("module_0001.jit_save", SAVE)
    dump("module_0002.jit_train_step", OFFLOAD)
    found = report(picked.parent, "--module", wanted, "--target", "gb200", code=0)
    assert found["input"]["path"] == str(picked)
    assert not [limit for limit in found["limits"] if "--module" in limit]


def test_a_name_that_two_modules_have_is_refused_and_both_are_named(dump: Callable[..., Path]) -> None:
    dump("module_0001.jit_step", SAVE)
    folder = dump("module_0012.jit_step", OFFLOAD).parent
    dump("module_0013.jit_other", SAVE)
    result = run(folder, "--module", "jit_step")
    assert result.exit_code == 2
    assert result.stderr == (
        f"hloinspect: error: {folder}: more than one module is named 'jit_step'; "
        "there are module_0001.jit_step, module_0012.jit_step\n"
    )
    assert report(folder, "--module", "12")["transfers"]


@pytest.mark.parametrize(
    "wanted",
    ["nobody", "3", "module_0001.jit", "", "²", "../module_0001.jit_step"],
    ids=["a name", "a number", "a part", "empty", "no decimal", "a path"],
)
def test_a_name_that_no_module_has_is_refused_and_all_are_named(dump: Callable[..., Path], wanted: str) -> None:
    folder = dump("module_0001.jit_step", SAVE).parent
    result = run(folder, "--module", wanted)
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        result.stderr == f"hloinspect: error: {folder}: no module is named {wanted!r}; there are module_0001.jit_step\n"
    )


def test_a_nameless_module_is_not_what_an_empty_name_means(tmp_path: Path) -> None:
    (tmp_path / "step.after_optimizations.txt").write_text("HloModule step")
    modules = dumped_modules(tmp_path)
    with pytest.raises(InputError, match="no module is named ''"):
        choose_module(tmp_path, modules, "")
    assert choose_module(tmp_path, modules, "step") == modules[0]


def test_other_keys_are_all_but_the_chosen_one(dump: Callable[..., Path]) -> None:
    dump("module_0001.jit_a", SAVE)
    folder = dump("module_0002.jit_b", OFFLOAD).parent
    modules = dumped_modules(folder)
    assert other_keys(modules, modules[1]) == ("module_0001.jit_a",)


# ---- files that belong to a module


MEMORY_REPORT = """Memory Space: default (color=0)
Total bytes: 1000 (1000B)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
   10.0KiB( 50%);   10.0KiB;            0;                1; bf16[8,4]

Memory Space: collective (color=1)
Total bytes: 24 (24B)

Memory Space: host (color=5)
Total bytes: 4096 (4.0KiB)
"""
ASSIGNMENT = """BufferAssignment:
allocation 0: size 256, page 0, parameter 0, shape |f32[64]| at ShapeIndex {}, maybe-live-out:
 value: <1 p @0> (size=256,offset=0): f32[64]{0}
allocation 1: size 512, color 5, page 1, preallocated-temp:
 value: <2 copy @0> (size=512,offset=0): f32[128]{0}
"""


def beside(path: Path, name: str, text: str) -> None:
    key = path.name.partition(".sm_")[0]
    (path.parent / name.format(key=key, stem=path.name.removesuffix(".txt"))).write_text(text)


def test_the_memory_report_gives_device_memory_of_all_colours_and_host_memory(dump: Callable[..., Path]) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD)
    beside(path, "{stem}-memory-usage-report.txt", MEMORY_REPORT)
    beside(path, "{stem}-buffer-assignment.txt", ASSIGNMENT)
    (module,) = dumped_modules(path.parent)
    memory = dumped_memory(module)
    assert memory is not None
    assert (memory.device_bytes, memory.host_bytes) == (1024, 4096)
    found = report(path.parent, "--target", "gb200")["memory"]
    assert (found["device_bytes"], found["host_bytes"], found["source"]) == (1024, 4096, "artifacts")


def test_without_a_memory_report_the_buffer_assignment_gives_it(dump: Callable[..., Path]) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD)
    beside(path, "{stem}-buffer-assignment.txt", ASSIGNMENT)
    found = report(path.parent, "--target", "gb200")["memory"]
    assert (found["device_bytes"], found["host_bytes"], found["source"]) == (256, 512, "artifacts")


def test_files_of_another_module_are_left_alone(dump: Callable[..., Path]) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD)
    other = dump("module_0002.jit_save", SAVE, thunks=True)
    beside(other, "{stem}-memory-usage-report.txt", MEMORY_REPORT)
    beside(other, "{key}.gpu_target_config.pbtxt", 'device_description_str: "NVIDIA H200 141GB HBM3e"')
    first, second = dumped_modules(path.parent)
    assert (first.thunk_sequence, first.thunk_metadata, first.memory_report, first.target_config) == (None,) * 4
    assert None not in (second.thunk_sequence, second.thunk_metadata, second.memory_report, second.target_config)
    assert (dumped_memory(first), dumped_device(first)) == (None, "")
    assert dumped_device(second) == "NVIDIA H200 141GB HBM3e"


@pytest.mark.parametrize(
    "text",
    ["", "nothing of the kind", "Memory Space: host (color=5)\nTotal bytes: 5 (5B)\n"],
    ids=["empty", "something else", "host memory only"],
)
def test_a_memory_report_without_device_memory_says_nothing(dump: Callable[..., Path], text: str) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD)
    beside(path, "{stem}-memory-usage-report.txt", text)
    (module,) = dumped_modules(path.parent)
    assert dumped_memory(module) is None
    assert report(path.parent, "--target", "gb200")["memory"]["source"] == "estimated"


def test_a_module_with_nothing_beside_it_is_judged_all_the_same(dump: Callable[..., Path]) -> None:
    folder = dump("module_0001.jit_train_step", OFFLOAD).parent
    found = report(folder, "--target", "gb200")
    assert [t["stream"] for t in found["transfers"]] == [None, None]
    assert found["memory"]["source"] == "estimated"
    assert found["memory"]["host_bytes"] == 4 * HID_BYTES
    assert report(folder, code=3)["target"] is None


KNOWN = [name for name in target_names() if load_target(name).xla_target_config and not load_target(name).stand_in]


@pytest.mark.parametrize("name", KNOWN)
def test_the_target_is_known_by_its_description(dump: Callable[..., Path], name: str) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD)
    configuration = ROOT / "hloinspect" / "hardware" / "target_configs" / str(load_target(name).xla_target_config)
    beside(path, "{key}.gpu_target_config.pbtxt", configuration.read_text())
    (module,) = dumped_modules(path.parent)
    assert dumped_device(module).startswith("NVIDIA ")
    assert report(path.parent)["target"]["name"] == name


def test_a_target_that_is_named_goes_before_the_one_of_the_dump(dump: Callable[..., Path]) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD)
    beside(path, "{key}.gpu_target_config.pbtxt", 'device_description_str: "NVIDIA GB200"')
    assert report(path.parent, "--target", "h100")["target"]["name"] == "h100"


@pytest.mark.parametrize(
    "text",
    ["", "gpu_device_info {}", 'device_description_str: "NVIDIA Nobody"', "\0\xff"],
    ids=["empty", "no description", "unknown", "a binary"],
)
def test_a_device_that_nobody_knows_is_no_target(dump: Callable[..., Path], text: str) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD)
    beside(path, "{key}.gpu_target_config.pbtxt", text)
    assert report(path.parent, code=3)["target"] is None


# ---- damaged thunk sequences


BROKEN = {
    "no thunks": "this is no thunk sequence\n",
    "a binary": "\0\1\2\3",
    "cut off": (FIXTURES / OFFLOAD / "thunk_sequence.txt").read_text()[:400],
    "empty": "",
    "no names": "001: kAsyncStart [source | sink] stream=memcpy_d2h_stream, async_id=99999999999999\n" * 3,
    "indented": " " * 9 + "001: kCopy [source | sink] kCopy\n001: kAsyncDone   [x] async_id=\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_thunk_sequence_costs_streams_and_not_the_report(dump: Callable[..., Path], text: str) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD, thunks=True)
    beside(path, "{key}.thunk_sequence.txt", text)
    found = report(path.parent, "--target", "gb200")
    assert [t["direction"] for t in found["transfers"]] == ["d2h", "h2d"]
    assert found["step"]["predicted"]["time_ms"] > 0
    named = [t["stream"] for t in found["transfers"]]
    assert None in named


def test_a_thunk_sequence_that_cannot_be_read_is_named_in_a_limit(dump: Callable[..., Path]) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD, thunks=True)
    beside(path, "{key}.thunk_sequence.txt", "this is no thunk sequence\n")
    limits = report(path.parent, "--target", "gb200")["limits"]
    assert [
        limit for limit in limits if limit.startswith("module_0001.jit_train_step.thunk_sequence.txt was not used: ")
    ]


def test_a_broken_module_of_a_dump_is_one_clear_error(dump: Callable[..., Path]) -> None:
    path = dump("module_0001.jit_train_step", OFFLOAD)
    path.write_text(path.read_text()[:-200])
    result = run(path.parent)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"hloinspect: error: {path}: ")
    assert result.stderr.count("\n") == 1


# ---- a real dump


def test_the_dump_of_a_671b_step_gives_memory_target_and_streams(corpus: Path) -> None:
    folder = corpus / "dump_maxtext_gb200"
    found = report(folder)
    assert found["target"]["name"] == "gb200"
    memory = found["memory"]
    assert (memory["device_bytes"], memory["host_bytes"]) == (135748267064, 51900317696)  # 126.42 and 48.34 GiB
    assert memory["source"] == "artifacts"
    streams = [t["stream"] for t in found["transfers"]]
    assert len(streams) == 20
    assert {stream: streams.count(stream) for stream in set(streams)} == {
        "memcpy_d2h_stream": 10,
        "memcpy_h2d_stream": 10,
    }
    assert all(t["stream"] == f"memcpy_{t['direction']}_stream" for t in found["transfers"])
    assert "device 126 GiB of 184 GiB   pinned host 48.3 GiB" in run(folder).stdout
