"""Time that collectives spend waiting for the slowest device: their executions matched over the devices of a run.

All devices of a collective end it together, and the one that comes last needs the least time. So the least time over
devices is that of the collective, and the rest on each device is **skew**: it waits there for the slowest. Durations
need no common clock. Steps are matched by time within a file, whose devices have one clock, and by their order between
files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloinspect.measure.measured import MeasuredDevice
from hloinspect.timeline.spans import Ints


@dataclass(frozen=True, slots=True)
class Skew:
    """The matched executions of one collective, in ps.

    ``least_ps`` is the least time over devices of every execution. ``skew_ps`` is the rest, for each device (by its
    place among those given) the mean of a step. ``steps`` steps were matched.
    """

    least_ps: Ints
    skew_ps: dict[int, float]
    steps: int


def collective_skew(files: Sequence[Sequence[MeasuredDevice]], names: frozenset[str]) -> dict[str, Skew]:
    """Return the skew of the collectives of these names that at least two devices run, by name.

    ``files`` has the devices of each file. Devices count through all files.
    """
    keys = _step_keys(files)
    tables = [device.instructions for devices in files for device in devices]
    rows: dict[str, dict[int, Ints]] = {}
    for place, table in enumerate(tables):
        if table is not None:
            for number, times in table.matched.items():
                if table.names[number] in names:
                    rows.setdefault(table.names[number], {})[place] = times
    found = {}
    common: dict[tuple[int, ...], list[Ints]] = {}
    for name, by_device in rows.items():
        places = tuple(by_device)
        if len(places) < 2 or len({times.shape[1] for times in by_device.values()}) > 1:
            continue
        if places not in common:
            common[places] = _common_rows([keys[place] for place in places])
        chosen = common[places]
        if not len(chosen[0]):
            continue
        times = np.stack([by_device[place][own] for place, own in zip(places, chosen, strict=True)])
        least = times.min(axis=0)
        skew = (times - least).sum(axis=2).mean(axis=1)
        found[name] = Skew(least.ravel(), dict(zip(places, skew.tolist(), strict=True)), times.shape[1])
    return found


def _step_keys(files: Sequence[Sequence[MeasuredDevice]]) -> list[Ints]:
    """Return for each device a key of every step that counts. Equal keys are one step of the run; -1 matches none."""
    first = [max(devices, key=lambda device: len(device.numbers), default=None) for devices in files]
    counts = {len(device.numbers) for device in first if device is not None}
    annotated = all(
        device is None or not np.array_equal(device.numbers, np.arange(len(device.numbers))) for device in first
    )
    keys = []
    offset = 0
    for devices, reference in zip(files, first, strict=True):
        for device in devices:
            assert reference is not None
            middle = (device.start_ps + device.end_ps) // 2
            place = np.searchsorted(reference.start_ps, middle, side="right") - 1
            inside = (place >= 0) & (middle <= reference.end_ps[np.maximum(place, 0)])
            number = reference.numbers[np.maximum(place, 0)] if annotated else place + offset
            keys.append(np.where(inside, number, -1)[device.clean])
        if len(counts) > 1 and not annotated and reference is not None:
            offset += len(reference.numbers)  # the files do not show which of their steps are the same
    return keys


def _common_rows(keys: Sequence[Ints]) -> list[Ints]:
    """Return for each device the places of the steps that all have, in the same order."""
    shared = keys[0]
    for own in keys:
        values, count = np.unique(own, return_counts=True)
        shared = np.intersect1d(shared, values[(count == 1) & (values >= 0)])
    return [np.argsort(own, kind="stable")[np.searchsorted(np.sort(own), shared)] for own in keys]
