"""Synthetic GPU traces of copies between host and device, on a machine whose rates are known."""

from __future__ import annotations

import random
from pathlib import Path

from hloinspect.kinds import D2H, H2D
from tests.support.xspace_builder import TraceBuilder

US, MS = 1_000_000, 1_000_000_000
LARGE = 64 << 20


def details(direction: str, size: int, memory: str = "pinned") -> str:
    ends = ("device", memory) if direction == D2H else (memory, "device")
    return f"kind_src:{ends[0]} kind_dst:{ends[1]} size:{size} dest:0 async:1"


class Gpu:
    """A synthetic GPU trace: copies on one line for each direction."""

    def __init__(self, **stats: str) -> None:
        self.trace = TraceBuilder()
        self.plane = self.trace.plane("/device:GPU:0", **{"device_vendor": "Nvidia", **stats})
        self._lines = {d: self.plane.line(f"Stream #{n}(Memcpy{d.upper()})", id=n) for d, n in ((D2H, 14), (H2D, 15))}

    def copy(self, direction: str, at_us: float, time_us: float, size: int, memory: str = "pinned") -> None:
        name = "MemcpyD2H" if direction == D2H else "MemcpyH2D"
        text = details(direction, size, memory) if memory else f"size:{size} dest:0 async:1"
        self._lines[direction].event(name, round(at_us * US), round(time_us * US), memcpy_details=text)

    def write(self, tmp_path: Path, name: str = "host.xplane.pb") -> str:
        return str(self.trace.write(tmp_path / name))


def machine(d2h: float, h2d: float, factor: float, latency_us: float, seed: int = 1) -> Gpu:
    """Return copies of such a machine, with rates in GB/s, 2 % of noise and a few outliers: alone in many sizes, and
    together."""
    gpu, noise = Gpu(gpu_device_name="NVIDIA H100 80GB HBM3"), random.Random(seed)

    def time_us(rate: float, size: int) -> float:
        return (latency_us + size / rate / 1e3) * noise.gauss(1, 0.01) * (3 if noise.random() < 0.05 else 1)

    now = 0.0
    for size in [1 << power for power in range(12, 28)] * 3 + [LARGE] * 20:
        for direction, rate in ((D2H, d2h), (H2D, h2d)):
            time = time_us(rate, size)
            gpu.copy(direction, now, time, size)
            now += time + 5
    for _ in range(20):
        times = {d: time_us(rate * factor, LARGE) for d, rate in ((D2H, d2h), (H2D, h2d))}
        # The shorter one ends first: the other then goes on alone and is faster.
        shorter = min(times, key=lambda d: times[d])
        longer = H2D if shorter == D2H else D2H
        times[longer] = times[shorter] + (times[longer] - times[shorter]) * factor
        for direction, time in times.items():
            gpu.copy(direction, now, time, LARGE)
        now += max(times.values()) + 5
    return gpu
