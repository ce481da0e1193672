"""Tools around traces: the fuzzer finds nothing in a short run, and big traces say what small ones do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from hloinspect.measure.file import measure_file
from tests.support.cuda_checks import in_graphs, play, trace_of
from tests.support.cuda_traces import write_trace


def test_damaged_traces_are_answered_or_refused(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(root / "benchmarks" / "fuzz_traces.py"), "--inputs", "100", "--truncate", "1777"]
    done = subprocess.run(
        [*command, "--keep", str(tmp_path / "found")], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "'answered'" in done.stdout
    assert "'refused'" in done.stdout
    assert not (tmp_path / "found").exists()


def test_a_big_trace_is_the_same_step_over_and_over_on_eight_devices(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "big.xplane.pb"
    tool = root / "benchmarks" / "big_trace.py"
    done = subprocess.run([sys.executable, str(tool), str(path), "20000", "--host"], capture_output=True, check=True)
    file = measure_file(path)
    steps = {len(device.numbers) for device in file.devices}
    assert len(file.devices) == 8
    assert steps == {9}
    assert int(done.stdout) == 2 * file.events + 9
    first = file.devices[0]
    assert first.launches_known
    assert not any(first.set_aside)
    for device in file.devices:
        for figure in ("compute_ps", "exposed_d2h_ps", "exposed_h2d_ps", "stall_ps"):
            assert np.unique(device.figures[figure]).tolist() == [first.figures[figure][0]]
        assert first.figures["stall_ps"][0] > 0


def test_the_recorder_prints_what_the_copies_of_a_slice_are_called(root: Path, tmp_path: Path) -> None:
    name = "jax0.10.2/gb200_offload_scan"
    run = play(name, 2)
    run.events = in_graphs(run, lambda event: event.what == "h2d")
    path = write_trace(trace_of(run, name), tmp_path / "host.xplane.pb")
    command = [sys.executable, str(root / "fixtures" / "record_gpu.py"), "--show", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    heroes = {event.op for event in run.events if event.what == "d2h"}
    assert len(heroes) == 1
    down = f"kind_src:device kind_dst:pinned async:1 | {heroes.pop()} | Stream #20(MemcpyD2D) | -"
    up = "kind_src:pinned kind_dst:device async:1 | command_buffer_3 | Stream #21(MemcpyD2D) | in a graph"
    assert [line.strip() for line in shown if "pinned" in line] == [f"8 x MemcpyD2D | {way}" for way in (down, up)]
