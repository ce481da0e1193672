"""What the programs of a trace are called in a report: their names, and their numbers where several have one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hloinspect.report.schema import TraceInfo


def program_names(trace: TraceInfo) -> Mapping[int, str]:
    """Return what each program is called, by its number: ``jit_step``, or ``jit_step (7)`` where another has its name,
    or ``program 7`` where it has none."""
    names = {one.program_id: one.name for one in trace.programs}
    names |= {one.program_id: one.name for one in trace.step_programs}
    count = Counter(names.values())
    return {
        number: f"program {number}" if not name else f"{name} ({number})" if count[name] > 1 else name
        for number, name in names.items()
    }
