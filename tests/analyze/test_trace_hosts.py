"""Traces of many hosts: processes, files elsewhere, a cluster; and what goes wrong with some of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from click.testing import CliRunner, Result

from hloinspect.analyze.trace import trace
from hloinspect.cli import main
from hloinspect.errors import InputError, UsageError
from hloinspect.inputs.remote import find_remote
from hloinspect.measure.cluster import measure_on_cluster
from hloinspect.measure.hosts import measure_files
from hloinspect.measure.measured import MeasuredFile
from hloinspect.measure.outcome import Unread
from hloinspect.render.terminal.measured_text import to_text
from hloinspect.report.json import to_json
from hloinspect.report.schema import Report
from tests.support.cuda_runtime import PROGRAM, Run, Speeds, compiled
from tests.support.cuda_traces import US, Device, Trace, write_trace
from tests.support.json_schemas import faults
from tests.support.places import ROOT

UNROLLED = "jax0.12.0.1/gb200_offload_unrolled"
HOSTS = 3
RUN = "2026_11_12_13_14_15"


def host_trace(path: Path, kernel_us: int = 20) -> Path:
    """Write the trace of a host with two devices, whose kernels take ``kernel_us``, and return its path."""
    own = compiled(UNROLLED)
    run = Run(own.module, own.directions, program=PROGRAM, speeds=Speeds(kernel=lambda op: kernel_us * US))
    run.steps(4)
    devices = tuple(Device(number, run.device().events) for number in range(2))
    return write_trace(Trace(devices, (own.program,), tuple(run.annotations)), path)


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile directory of three hosts, of which the second is the slowest."""
    folder = tmp_path_factory.mktemp("hosts")
    run = folder / "plugins" / "profile" / RUN
    run.mkdir(parents=True)
    for number in range(HOSTS):
        host_trace(run / f"worker-{number}.xplane.pb", 25 if number == 1 else 20)
    return folder


@pytest.fixture(scope="session")
def report(profile: Path) -> Report:
    return trace(str(profile)).report


@pytest.fixture
def broken(profile: Path, tmp_path: Path) -> Path:
    """Return the same profile, in which the third host's file is cut off."""
    folder = tmp_path / "broken"
    shutil.copytree(profile, folder)
    cut = folder / "plugins" / "profile" / RUN / "worker-2.xplane.pb"
    cut.write_bytes(cut.read_bytes()[:-100])
    return folder


def files_of(profile: Path) -> list[str]:
    return sorted(map(str, (profile / "plugins" / "profile" / RUN).iterdir()))


def run_command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["trace", *arguments], standalone_mode=False)


def plain(outcomes: tuple[Any, ...]) -> list[str]:
    """Return results as text, to compare: arrays in them have no ``==``."""
    return [repr(outcome) for outcome in outcomes]


# ---- the report


def test_the_slowest_host_and_the_spread_are_named(report: Report) -> None:
    text = unstyle(to_text(report))
    assert "on 3 hosts" in text
    assert "the slowest of 3 hosts is worker-1 (GPU:" in text
    assert report.trace is not None
    times = {host.host: host.step.time_ms for host in report.trace.per_host if host.step}
    assert max(times, key=lambda name: times[name]) == "worker-1"
    behind = 100 * (times["worker-1"] / times["worker-0"] - 1)
    assert f"{behind:.1f} % behind the fastest" in text
    assert report.step.measured is not None
    assert report.step.measured.time_ms == pytest.approx(sum(times.values()) / HOSTS)
    assert faults(json.loads(to_json(report)), "report") == []


@pytest.mark.parametrize("width", [100, 80, 60])
def test_the_hosts_table_fits(report: Report, width: int) -> None:
    text = unstyle(to_text(report, width)).splitlines()
    begin = next(number for number, line in enumerate(text) if line.startswith(" host "))
    assert all(len(line) <= width for line in text[begin : begin + HOSTS + 2])


def test_all_hosts_are_shown_on_request(report: Report) -> None:
    assert report.trace is not None
    many = tuple(replace(report.trace.per_host[0], host=f"rank{number}") for number in range(12))
    report = replace(report, trace=replace(report.trace, per_host=many))
    short, whole = (unstyle(to_text(report, 100, show_all)) for show_all in (False, True))
    assert "4 faster hosts (--all shows them)" in short
    assert sum(line.startswith(" rank") for line in whole.splitlines()) == 12


def test_a_host_without_a_step_that_counts_is_named(report: Report) -> None:
    assert report.trace is not None
    first, *others = report.trace.per_host
    report = replace(report, trace=replace(report.trace, per_host=(replace(first, step=None), *others)))
    assert "no step counts on worker-0" in to_text(report)


# ---- processes


def test_processes_give_the_same_results_as_this_one_in_the_order_of_the_files(profile: Path) -> None:
    pytest.importorskip("fsspec")
    paths = files_of(profile)[::-1]
    mixed = [paths[0], f"file://{paths[1]}", paths[2]]  # a URL's copy is fetched by the process that reads it
    here, elsewhere = measure_files(paths, jobs=1), measure_files(mixed, jobs=2)
    assert [one.path for one in elsewhere] == mixed
    assert plain(here) == [text.replace("file://", "") for text in plain(elsewhere)]
    modules = {id(one.module) for one in elsewhere if isinstance(one, MeasuredFile)}
    assert len(modules) == 1, "the hosts' module is kept once"


def test_a_broken_file_is_named_and_the_rest_goes_on(broken: Path) -> None:
    done = run_command(str(broken))
    assert done.return_value == 3
    assert "on 2 hosts" in done.output
    assert "not known:" in done.output
    assert "worker-2.xplane.pb:expectedaprofiler'strace" in "".join(done.output.split())
    allowed = run_command(str(broken), "--allow-broken")
    assert allowed.return_value == 0
    assert "limit: left out:" in allowed.output


def test_of_very_many_broken_files_only_some_are_shown(broken: Path) -> None:
    folder = broken / "plugins" / "profile" / RUN
    for number in range(20):
        (folder / f"worker-9{number:02}.xplane.pb").write_bytes(b"\x0a\xff")
    report = trace(str(broken)).report
    assert report.trace is not None
    assert len(report.trace.unread) == 21
    assert any("17 more files" in unknown.reason for unknown in report.unknown)
    assert len(report.unknown) == 5


def test_a_profile_of_broken_files_alone_is_an_error(broken: Path) -> None:
    for path in files_of(broken):
        Path(path).write_bytes(b"\x0a\xff")
    with pytest.raises(InputError, match="none of its 3 traces can be read"):
        trace(str(broken))


def holder_of(path: Path) -> int:
    """Return the process, not this one, that has the file open; wait for one."""
    for _ in range(600):
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and int(process.name) != os.getpid():
                try:
                    if any(os.readlink(fd) == str(path) for fd in (process / "fd").iterdir()):
                        return int(process.name)
                except OSError:
                    continue
        time.sleep(0.05)
    raise AssertionError(f"nobody opens {path}")


def kill_reader(pipe: Path, before: Callable[[], object] = lambda: None) -> None:
    """End the process that reads from the pipe, which waits for its first byte."""
    with pipe.open("wb"):
        reader = holder_of(pipe)
        before()
        os.kill(reader, signal.SIGKILL)
    while is_alive(reader):  # otherwise the next to open the pipe may find this one still there, and kill it twice
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    """Return whether a process still runs. One that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_worker_that_is_killed_is_named_by_its_file_and_the_rest_goes_on(profile: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "worker-9.xplane.pb"  # a process that opens it waits there
    os.mkfifo(pipe)
    one, two, three = files_of(profile)
    killer = threading.Thread(target=kill_reader, args=(pipe,))
    killer.start()
    found = measure_files([one, str(pipe), two, three], jobs=2)
    killer.join()
    unread = found[1]
    assert isinstance(unread, Unread)
    assert unread.reason.startswith(f"{pipe}: the process that measured it was killed")
    assert plain((found[0], *found[2:])) == plain(measure_files([one, two, three], jobs=1))


@pytest.mark.slow
def test_many_hosts_work_from_the_command_line(broken: Path, hloinspect_process: Callable[..., Any]) -> None:
    done = hloinspect_process("trace", str(broken), "--jobs", "2", "--format", "json", "--allow-broken")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["trace"]["hosts"] == ["worker-0", "worker-1"]


# ---- elsewhere


@pytest.fixture
def bucket(profile: Path) -> Iterator[str]:
    """Yield the profile in fsspec's file system in memory, with an older run beside it."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    files.put(str(profile), "/bucket/logs", recursive=True)
    files.pipe("/bucket/logs/plugins/profile/2020_01_01_00_00_00/worker-0.xplane.pb", b"\x0a\xff")
    files.pipe(f"/bucket/logs/plugins/profile/{RUN}/ALL_HOSTS.op_stats.pb", b"")
    yield "memory://bucket/logs"
    files.rm("/bucket", recursive=True)


def test_a_directory_elsewhere_gives_the_same_results_as_a_copy_of_it(
    bucket: str, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    there, here = trace(bucket), trace(str(profile))
    assert there.report.step == here.report.step
    assert there.report.transfers == here.report.transfers
    assert there.report.trace is not None
    assert there.report.trace.files == tuple(
        f"memory:///bucket/logs/plugins/profile/{RUN}/worker-{number}.xplane.pb" for number in range(HOSTS)
    )
    assert list(tmp_path.iterdir()) == [], "copies are removed"


@pytest.mark.parametrize("below", ["/", "/plugins", "/plugins/profile", f"/plugins/profile/{RUN}"])
def test_the_newest_run_elsewhere_is_found_by_the_same_rules(bucket: str, below: str) -> None:
    names = [url.rpartition("/")[2] for url in find_remote(bucket + below)]
    assert names == [f"worker-{number}.xplane.pb" for number in range(HOSTS)]


def test_one_file_elsewhere_may_be_named(bucket: str) -> None:
    report = trace(f"{bucket}/plugins/profile/{RUN}/worker-1.xplane.pb").report
    assert report.trace is not None
    assert report.trace.hosts == ("synthetic",)


def test_a_broken_file_elsewhere_is_named_by_its_url(bucket: str) -> None:
    url = f"{bucket}/plugins/profile/2020_01_01_00_00_00"
    with pytest.raises(InputError, match=r"^memory:///bucket/logs/plugins/profile/2020_01_01_00_00_00/worker-0\S+: "):
        trace(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memory://bucket/nowhere", "no such file or directory"),
        ("nonsense://bucket/logs", "nonsense:// cannot be read"),
        ("http://127.0.0.1:9/logs", ""),
    ],
)
def test_what_is_not_there_is_one_line(url: str, says: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(InputError, match=rf"^{url}: .*{says}") as caught:
        trace(url)
    assert "\n" not in str(caught.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, profile: Path) -> None:
    for module in ("fsspec", "distributed"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"^gs://bucket/profile: .*pip install \"hloinspect\[remote\]\"$") as caught:
        trace("gs://bucket/profile")
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=r"pip install \"hloinspect\[cluster\]\"$"):
        trace(str(profile), scheduler="tcp://127.0.0.1:9")


def test_a_file_system_whose_package_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InputError, match=r"^gs://bucket/profile: reading gs:// needs another package .*remote"):
        trace("gs://bucket/profile")


# ---- a cluster


@pytest.mark.slow
def test_a_scheduler_that_cannot_be_reached_is_one_line(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("hloinspect.measure.cluster.CONNECT_S", 1.0)
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        with pytest.raises(InputError, match=rf"^{address}: no Dask scheduler") as caught:
            trace(str(profile), scheduler=address)
        assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a scheduler with two workers, each a process that is started again when it dies."""
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    root = str(ROOT)
    settings = {
        "distributed.scheduler.allowed-failures": 1,
        "distributed.nanny.pre-spawn-environ.PYTHONPATH": root,
        "temporary-directory": str(tmp_path_factory.mktemp("dask")),
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
        ) as made,
    ):
        yield made


@pytest.mark.slow
def test_a_cluster_gives_the_same_results_also_when_a_worker_is_killed_half_way(
    cluster: Any, broken: Path, tmp_path: Path
) -> None:
    expected = measure_files(files_of(broken), jobs=1)
    first = Path(files_of(broken)[0])
    whole = first.rename(tmp_path / "whole")
    os.mkfifo(first)

    # The next worker that tries it finds the whole file.
    killer = threading.Thread(target=kill_reader, args=(first, lambda: whole.replace(first)))
    killer.start()
    found = measure_files(files_of(broken), scheduler=cluster.scheduler_address)
    killer.join()
    assert plain(found) == plain(expected)
    assert [type(one) for one in found] == [MeasuredFile, MeasuredFile, Unread]


@pytest.mark.slow
def test_a_file_that_kills_its_workers_is_named(cluster: Any, profile: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "worker-9.xplane.pb"
    os.mkfifo(pipe)
    killer = threading.Thread(target=lambda: [kill_reader(pipe) for _ in range(2)])
    killer.start()
    found = measure_files([*files_of(profile)[:1], str(pipe)], scheduler=cluster.scheduler_address)
    killer.join()
    assert isinstance(found[0], MeasuredFile)
    assert isinstance(found[1], Unread)
    assert found[1].reason == f"{pipe}: the workers that measured it died (is there enough memory?)"


@pytest.mark.slow
def test_a_cluster_without_workers_is_given_up(profile: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as made,
        pytest.raises(InputError, match="has had no workers for 1 s"),
    ):
        list(measure_on_cluster(files_of(profile), made.scheduler_address, lambda: None, no_workers_s=1.0))


def test_programs_of_one_number_and_of_other_names_are_not_one_program(tmp_path: Path) -> None:
    """Each process numbers its programs for itself, so the number says nothing of another process's."""
    host_trace(tmp_path / "worker-0.xplane.pb")
    host_trace(tmp_path / "worker-1.xplane.pb")
    alone = trace(str(tmp_path)).report
    own = compiled("optimizer")
    run = Run(own.module, own.directions, program=PROGRAM)
    run.steps(4)
    other = write_trace(Trace((run.device(),), (own.program,)), tmp_path / "worker-2.xplane.pb")
    report = trace(str(tmp_path)).report
    assert report.step == alone.step
    assert report.module == alone.module
    assert f"{other} is of another program than most and is not in the figures" in report.limits
