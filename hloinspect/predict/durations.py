"""Durations of runs of kernels and of collectives on a target, computed once for all simulations under one scenario."""

from __future__ import annotations

from hloinspect.hardware.target import Target
from hloinspect.predict.collective import Collective
from hloinspect.predict.contention import Kernels, kernels_of
from hloinspect.predict.cost import Cost
from hloinspect.predict.scenario import Scenario
from hloinspect.predict.schedule import Run


class Durations:
    """Times of runs by their identity. Simulations of one schedule under one scenario share them."""

    def __init__(self, target: Target, scenario: Scenario) -> None:
        self._target = target
        self._scenario = scenario
        self._totals: dict[Run, float] = {}
        self._kernels: dict[tuple[Run, float], Kernels] = {}
        self._collectives: dict[Collective, float] = {}
        self._work: dict[Run, list[tuple[float, float]]] = {}

    def total_ps(self, run: Run) -> float:
        """Return the time of a run that has device memory to itself."""
        time = self._totals.get(run)
        if time is None:
            time = sum(cost.time_ps(self._target, self._scenario) for cost in run.costs)
            self._totals[run] = time
        return time

    def kernels(self, run: Run, taken: float) -> Kernels:
        """Return the kernels of a run beside host copies that take a share of device memory's bandwidth."""
        key = (run, taken)
        found = self._kernels.get(key)
        if found is None:
            work = self._work.get(run)
            if work is None:
                work = [self._times(cost) for cost in run.costs]
                self._work[run] = work
            found = self._kernels[key] = kernels_of(work, taken)
        return found

    def _times(self, cost: Cost) -> tuple[float, float]:
        return cost.time_ps(self._target, self._scenario), cost.memory_ps(self._target, self._scenario)

    def collective_ps(self, collective: Collective) -> float:
        """Return the time of a collective. Layers have alike ones."""
        time = self._collectives.get(collective)
        if time is None:
            case = self._scenario
            time = collective.time_ps(self._target, case.collective_efficiency, case.figures)
            self._collectives[collective] = time
        return time

    def side_ps(self, cost: Cost) -> tuple[float, float]:
        """Return (time without device memory, bandwidth) of a copy on the side stream, in picoseconds."""
        time, memory = self._times(cost)
        return max(0.0, time - memory), memory
