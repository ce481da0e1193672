"""The sentence that says what a prediction does not explain of a profile, on records made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hloinspect.kinds import InstructionClass
from hloinspect.report.schema import (
    ClassTimes,
    Exposed,
    InstructionsInfo,
    MeasuredStep,
    PredictedStep,
    PredictedTime,
    Spread,
    StepInfo,
)
from hloinspect.report.unexplained import unexplained

NONE = Exposed(0.0, 0.0, 0.0)
PREDICTED = PredictedStep(
    *(100.0, 90.0, 110.0, 100.0, 0.0, NONE, 0.0, 0.0, 0.0, 0.0, 0.0, 100.0, 100.0, 0.0, 0.0),
)


def step(measured_ms: float, *, stall_ms: float = 0.0, idle_ms: float = 0.0) -> StepInfo:
    each = Spread(*(measured_ms,) * 5)
    found = MeasuredStep(
        *(measured_ms, measured_ms - idle_ms - stall_ms, 0.0, NONE, stall_ms, stall_ms, 0.0, idle_ms, 0.0, 0.0, 0.0),
        step_ms=each,
        stall_spread_ms=each,
        steps_analyzed=1,
        steps_seen=1,
    )
    return StepInfo(PREDICTED, found)


def of_class(kind: InstructionClass, took_ms: float, *predicted_ms: float, skew_ms: float | None = None) -> ClassTimes:
    price = PredictedTime(*predicted_ms)
    total = took_ms + (skew_ms or 0.0)
    return ClassTimes(kind, 1, 1.0, total, skew_ms, price, took_ms / price.time_ms, 0, 0.0)


def with_classes(*classes: ClassTimes) -> InstructionsInfo:
    return InstructionsInfo(1, sum(one.total_ms for one in classes), classes, (), 0, 0.0, ())


@pytest.mark.parametrize("measured_ms", [85.0, 90.0, 100.0, 110.0, 115.0])
def test_a_step_within_its_range_or_near_it_is_explained(measured_ms: float) -> None:
    classes = with_classes(of_class("matmul", 95, 90, 80, 99))
    assert unexplained(step(measured_ms), classes) is None


def test_a_longer_step_names_the_class_that_is_furthest_off() -> None:
    classes = with_classes(
        of_class("loop", 21, 19, 18, 20), of_class("scatter", 60, 0.02, 0.01, 0.03), of_class("reduce", 30, 10, 9, 11)
    )
    assert unexplained(step(180), classes) == (
        "the model does not explain this profile: measured 180 ms, predicted 100 ms (90 ms to 110 ms); scatter "
        "instructions take 60 ms where 20 us is predicted; reduce instructions take 30 ms where 10 ms is predicted"
    )


def test_a_shorter_step_is_not_explained_either() -> None:
    text = unexplained(step(60), with_classes(of_class("matmul", 55, 95, 85, 105)))
    assert text is not None
    assert text.endswith("matmul instructions take 55 ms where 95 ms is predicted")


def test_classes_that_are_off_are_named_where_the_step_fits() -> None:
    """One is too slow, another too fast: the step is right by chance."""
    text = unexplained(step(100), with_classes(of_class("matmul", 30, 60, 50, 70), of_class("copy", 60, 30, 25, 35)))
    assert text is not None
    assert text.startswith(
        "the model does not explain this profile, though the step's time is inside the predicted range: measured 100 ms"
    )
    assert "copy instructions take 60 ms where 30 ms is predicted" in text


def test_a_class_that_is_off_by_little_of_the_step_does_not_count() -> None:
    assert unexplained(step(100), with_classes(of_class("sort", 4.9, 0.01, 0.01, 0.02))) is None


def test_skew_is_named_apart_from_the_collective() -> None:
    text = unexplained(step(150), with_classes(of_class("all-reduce", 1, 1, 0.9, 1.1, skew_ms=40)))
    assert text is not None
    assert text.endswith("; collectives wait 40 ms for the slowest device (not in the model)")


def test_waits_for_the_link_and_idle_time_are_named() -> None:
    text = unexplained(step(150, stall_ms=30, idle_ms=20), None)
    assert text is not None
    assert "the step waits 30 ms for the link to the host where 0 ms is predicted" in text
    assert "the device is idle for 20 ms" in text


def test_nothing_responsible_is_said_too() -> None:
    text = unexplained(step(150), with_classes(of_class("matmul", 95, 90, 80, 99)))
    assert text is not None
    assert text.endswith("; no class of instructions and no link is responsible alone")


def test_without_a_prediction_or_a_step_there_is_nothing_to_say() -> None:
    assert unexplained(replace(step(500), predicted=None), None) is None
    assert unexplained(replace(step(500), measured=None), None) is None
