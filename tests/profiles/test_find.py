"""The files of a profile directory that are the trace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hloinspect.errors import InputError
from hloinspect.profiles.xplane import find_xplanes, host_of
from tests.support.xspace_builder import TraceBuilder

OLD, NEW = "2026_01_02_03_04_05", "2026_11_12_13_14_15"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Return a log directory with two runs, two hosts in the newer one, and files of a viewer beside them."""
    for run, host in ((OLD, "worker-0"), (NEW, "34.83.195.179_6003"), (NEW, "t1v-n-1-w-0")):
        TraceBuilder().write(tmp_path / "plugins" / "profile" / run / f"{host}.xplane.pb")
    runs = tmp_path / "plugins" / "profile"
    for name in ("ALL_HOSTS.op_stats_v2.pb", "t1v-n-1-w-0.SSTABLE", "t1v-n-1-w-0.trace.json.gz", "x.hlo_proto.pb"):
        (runs / NEW / name).write_bytes(b"")
    (runs / "2027_01_01_00_00_00").mkdir()  # a run that is being written
    os.utime(runs / NEW / "t1v-n-1-w-0.xplane.pb", (0, 0))  # a copy may have lost its time
    return tmp_path


@pytest.mark.parametrize("below", ["", "plugins/profile", "plugins", f"plugins/profile/{NEW}"])
def test_the_newest_run_is_taken_with_one_file_a_host(logdir: Path, below: str) -> None:
    names = [path.name for path in find_xplanes(logdir / below)]
    assert names == ["34.83.195.179_6003.xplane.pb", "t1v-n-1-w-0.xplane.pb"]


def test_runs_with_names_of_their_own_go_by_the_time_they_were_written(logdir: Path) -> None:
    named = TraceBuilder().write(logdir / "plugins" / "profile" / "before_the_fix" / "h.xplane.pb")
    os.utime(named, (2e9, 2e9))
    assert find_xplanes(logdir) == (named,)


def test_a_file_is_taken_as_it_is(logdir: Path) -> None:
    path = logdir / "plugins" / "profile" / OLD / "worker-0.xplane.pb"
    assert find_xplanes(path) == (path,)
    assert find_xplanes(str(path)) == (path,)


def test_a_directory_without_a_trace_is_refused_and_a_chrome_trace_in_it_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found none"):
        find_xplanes(tmp_path)
    (tmp_path / "plugins" / "profile" / OLD).mkdir(parents=True)
    chrome = tmp_path / "plugins" / "profile" / OLD / "h.trace.json.gz"
    chrome.write_bytes(b"")
    with pytest.raises(InputError, match=r"h\.trace\.json\.gz, a Chrome trace"):
        find_xplanes(tmp_path)


@pytest.mark.parametrize("name", ["nothing here", "a\0b", "x" * 5000])
def test_a_path_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        find_xplanes(f"{tmp_path}/{name}")


def test_a_host_is_named_by_its_file() -> None:
    for name in ("34.83.195.179_6003", "chi-mi300x-013.ord.example.com"):
        assert host_of(Path(f"{name}.xplane.pb")) == host_of(Path(f"{name}.xplane.pb.gz")) == name
    assert host_of(Path("other.pb")) == "other.pb"
