"""The instructions of a trace in its report: measured times, and predicted ones beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hloinspect.analyze.options import Machine
from hloinspect.hardware import domain_of
from hloinspect.measure.join import ProgramJoin
from hloinspect.measure.measured import MeasuredFile
from hloinspect.offload.source import read_source
from hloinspect.predict.collective import collective_of
from hloinspect.predict.prices import instruction_prices
from hloinspect.predict.schedule import device_count
from hloinspect.report.instructions import instructions_info
from hloinspect.report.schema import Report, SourceInfo
from hloinspect.report.step_programs import step_of_module
from hloinspect.report.unexplained import unexplained


def with_instructions(
    report: Report, files: Sequence[MeasuredFile], joined: ProgramJoin | None, machine: Machine
) -> Report:
    """Return the report with the times of the instructions, and first of all what the model does not explain of them.

    ``joined`` is the step's module, None where no trace has one.
    """
    if any(file.graph_blocks for file in files):  # nothing in a graph that was traced as one block is seen
        return report
    prices = None
    if joined is not None and machine.target is not None and report.step.predicted is not None:
        count = machine.devices or device_count(joined.module)
        domain = domain_of(machine.target, machine.topology)
        prices = instruction_prices(joined.offload, machine.target, count, domain)

    def whole_groups(name: str) -> bool:
        place = joined.place_of(name) if joined is not None else None
        if joined is None or place is None:
            return False
        devices = device_count(joined.module)
        found = collective_of(joined.module, *place, devices, devices)
        return found is not None and found.size >= devices

    def source_of(name: str) -> SourceInfo | None:
        place = joined.place_of(name) if joined is not None else None
        source = read_source(place[1].metadata) if place is not None else None
        return source.info if source is not None else None

    found = instructions_info(files, prices, whole_groups, source_of)
    programs = report.trace.step_programs if report.trace is not None else ()
    runs = next((one.runs for one in programs if one.is_module), 1.0)
    text = unexplained(step_of_module(report), found, runs)
    if found is not None:
        found = replace(found, unexplained=text)
    return replace(report, instructions=found, limits=(*([text] if text else ()), *report.limits))
