"""Profiles are known by their content, unpacked where they are packed, and found in a directory."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import stat
import sys
from pathlib import Path

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.analyze.trace import trace
from hloinspect.errors import InputError
from hloinspect.inputs.classify import is_trace
from hloinspect.profiles.content import content_of
from hloinspect.profiles.find import find_profiles, left_out
from hloinspect.profiles.open import open_trace
from tests.support.cuda_checks import play, trace_of
from tests.support.nsys_traces import Writing, write_dump, write_nsys
from tests.support.xspace_builder import TraceBuilder

REPORT = b"NVIDIA Tegra Profiler Report 2025@6@1@190-256136895201v0.\n"
CHROME = json.dumps({"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "a"}]}).encode()


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic export."""
    path = tmp_path_factory.mktemp("export") / "synthetic.sqlite"
    return write_nsys(trace_of(play("optimizer", 1), "optimizer"), path, Writing())


PACKINGS = {"": bytes, ".gz": lambda data: gzip.compress(data, mtime=0), ".xz": lzma.compress}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", ["report.sqlite", "report.json", "host.xplane.pb", "no suffix", "100%?#x.sqlite"])
def test_an_export_is_read_whatever_it_is_called(tmp_path: Path, export: Path, name: str, packing: str) -> None:
    path = tmp_path / f"{name}{packing}"
    path.write_bytes(PACKINGS[packing](export.read_bytes()))
    assert content_of(path) == "sqlite"
    assert is_trace(str(path))
    space = open_trace(path)
    assert (space.kind, space.path) == ("nsys", str(path))
    assert space.planes_of("/device:GPU:0")


def test_a_packed_export_leaves_no_temporary_file(
    tmp_path: Path, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    packed = tmp_path / "report.sqlite.xz"
    packed.write_bytes(lzma.compress(export.read_bytes()))
    open_trace(packed)
    packed.write_bytes(lzma.compress(export.read_bytes())[:-100])
    with pytest.raises(InputError, match="cut off") as raised:
        open_trace(packed)
    assert str(raised.value).startswith(f"{packed}: ")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("name", ["host.json", "host.xplane.pb", "trace"])
@pytest.mark.parametrize("begin", [b"", b" ", b"\xef\xbb\xbf"])
def test_json_is_a_chrome_trace(tmp_path: Path, name: str, begin: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(begin + CHROME)
    assert content_of(path) == "chrome"


def test_a_line_feed_begins_json_or_an_xspace_and_the_name_decides(tmp_path: Path) -> None:
    for name, kind in (("host.json", "chrome"), ("host.xplane.pb", "other")):
        (tmp_path / name).write_bytes(b"\n" + CHROME)
        assert content_of(tmp_path / name) == kind


def test_an_xspace_may_be_called_json(tmp_path: Path) -> None:
    space = TraceBuilder()
    space.plane("/device:GPU:0").line("Stream #1(Compute)", id=1).event("k", 1, 2)
    path = tmp_path / "trace.json"
    space.write(path)
    assert open_trace(path).kind == "xplane"


@pytest.mark.parametrize("name", ["old.qdrep", "raw.qdstrm"])
def test_what_only_nsys_can_read_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"something")
    assert is_trace(str(tmp_path / name))
    with pytest.raises(InputError, match="nsys export --type sqlite"):
        open_trace(tmp_path / name)


# ---- reports


def stand_in(folder: Path, script: str) -> None:
    """Write a program called nsys that is none: it does what ``script`` says."""
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nreport, target = sys.argv[-1], sys.argv[-2]\n{script}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that begins as a report does, and an empty PATH but for a folder ``bin`` that is not there yet."""
    path = tmp_path / "-step.nsys-rep"
    path.write_bytes(REPORT + bytes(100))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return path


def test_a_report_without_nsys_says_what_to_run(report: Path) -> None:
    assert content_of(report) == "nsys-rep"
    with pytest.raises(InputError, match=r"not on PATH: run `nsys export --type sqlite") as raised:
        open_trace(report)
    assert "\n" not in str(raised.value)


def test_a_report_is_exported_by_nsys(tmp_path: Path, report: Path, export: Path) -> None:
    stand_in(
        tmp_path / "bin", f"assert open(report, 'rb').read(28) == {REPORT[:28]!r}; shutil.copy({str(export)!r}, target)"
    )
    said: list[str] = []
    space = open_trace(report, said.append)
    assert (space.kind, space.path) == ("nsys", str(report))
    assert said == ["exporting -step.nsys-rep with nsys"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["-step.nsys-rep", "bin"]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("sys.exit('The file was made\\nby a newer version.')", "The file was made by a newer version"),
        ("pass", "wrote no SQLite file"),
        ("open(target, 'wb').write(bytes(range(256)))", "wrote no SQLite file"),
        ("open(target, 'wb').write(b'SQLite format 3\\0')", "cut off"),
    ],
)
def test_an_export_that_fails_is_one_line(tmp_path: Path, report: Path, script: str, found: str) -> None:
    stand_in(tmp_path / "bin", script)
    with pytest.raises(InputError, match=found) as raised:
        open_trace(report)
    assert str(raised.value).startswith(f"{report}: ")
    assert "\n" not in str(raised.value)


def test_an_export_that_does_not_end_is_ended(tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloinspect.profiles.nsys.report.TIMEOUT_S", 0.5)
    stand_in(tmp_path / "bin", "import time; time.sleep(100)")
    with pytest.raises(InputError, match="took more than"):
        open_trace(report)


# ---- directories


def in_folder(folder: Path, export: Path, names: dict[str, float]) -> Path:
    """Write files with their times: exports, and reports where the name says so."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, time in names.items():
        (folder / name).write_bytes(REPORT if name.endswith(".nsys-rep") else export.read_bytes())
        os.utime(folder / name, (time, time))
    return folder


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"report1.sqlite": 1, "report2.sqlite": 3, "report3.sqlite": 2}, ["report2.sqlite"]),
        ({"r_rank10.sqlite": 1, "r_rank2.sqlite": 2, "old.sqlite": 0}, ["r_rank2.sqlite", "r_rank10.sqlite"]),
        ({"a.nsys-rep": 1, "a.sqlite": 2}, ["a.sqlite"]),
        ({"a.nsys-rep": 2, "a.sqlite": 2}, ["a.sqlite"]),
        ({"a.nsys-rep": 3, "a.sqlite": 2}, ["a.nsys-rep"]),
        ({"a.node0.rank1.sqlite": 1, "a.node1.rank0.sqlite": 2}, ["a.node0.rank1.sqlite", "a.node1.rank0.sqlite"]),
        ({"r_1.sqlite": 1, "r_0.sqlite": 2, "r_2.sqlite": 0}, ["r_0.sqlite", "r_1.sqlite", "r_2.sqlite"]),
        ({"step_100.sqlite": 1, "step_200.sqlite": 2}, ["step_200.sqlite"]),
        ({"r_0.sqlite": 1, "r_2.sqlite": 2}, ["r_2.sqlite"]),
    ],
)
def test_a_directory_has_the_newest_run_with_its_ranks(
    tmp_path: Path, export: Path, names: dict[str, float], expected: list[str]
) -> None:
    folder = in_folder(tmp_path / "runs", export, names)
    assert [path.name for path in find_profiles(folder)] == expected
    assert is_trace(str(folder))


def test_what_else_a_directory_has_is_said(tmp_path: Path, export: Path) -> None:
    folder = in_folder(
        tmp_path / "runs", export, {"a_0.sqlite": 3, "a_1.sqlite": 3, "old.sqlite": 1, "old.nsys-rep": 1}
    )
    said = left_out(folder, find_profiles(folder))
    assert "not read: old.sqlite (read: a_0.sqlite, a_1.sqlite)" in said
    assert any(said == limit for limit in trace(str(folder)).report.limits)
    (folder / "old.sqlite").unlink()
    (folder / "old.nsys-rep").unlink()
    assert left_out(folder, find_profiles(folder)) == ""
    assert left_out(folder / "a_0.sqlite", (folder / "a_0.sqlite",)) == ""


def test_an_export_beside_a_trace_of_jax_is_said(tmp_path: Path, export: Path) -> None:
    folder = in_folder(tmp_path / "runs", export, {"a.sqlite": 1})
    TraceBuilder().write(folder / "host.xplane.pb")
    found = find_profiles(folder)
    assert [path.name for path in found] == ["host.xplane.pb"]
    assert "not read: a.sqlite (read: host.xplane.pb)" in left_out(folder, found)


def test_a_database_of_another_kind_of_name_or_content_is_no_run(tmp_path: Path, export: Path) -> None:
    folder = in_folder(tmp_path / "runs", export, {"a.db": 1})
    (folder / "text.sqlite").write_text("no database")
    with pytest.raises(InputError, match="found none"):
        find_profiles(folder)
    assert not is_trace(str(folder))


def test_a_dump_with_a_profile_in_it_is_a_dump(tmp_path: Path, export: Path) -> None:
    folder = in_folder(tmp_path / "dump", export, {"a.sqlite": 1})
    (folder / "module_0001.jit_f.sm_9.0_gpu_after_optimizations.txt").write_text("HloModule jit_f")
    assert not is_trace(str(folder))
    assert [path.name for path in find_profiles(folder)] == ["a.sqlite"]


def test_of_a_dump_with_profiles_the_dump_is_judged_and_the_profiles_are_named(tmp_path: Path, export: Path) -> None:
    folder = write_dump(trace_of(play("optimizer", 1), "optimizer"), tmp_path / "dump")
    assert not any("profiles" in limit for limit in inspect(str(folder), target="h100").report.limits)
    in_folder(folder, export, {"a.sqlite": 1})
    limits = inspect(str(folder), target="h100").report.limits
    assert "the dump's directory has profiles, which only `hloinspect trace` reads: a.sqlite" in limits


def test_what_is_no_profile_is_refused_with_all_that_is_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no profile")
    with pytest.raises(InputError, match=r"XSpace .*, a Chrome trace, or what Nsight Systems or nsys-jax writes"):
        open_trace(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"xplane\.pb, or exports, reports or archives of Nsight Systems, found none"):
        find_profiles(tmp_path)
