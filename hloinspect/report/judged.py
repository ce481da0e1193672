"""The first line of a report on a profile or a dump: which module was judged, and what shows that it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloinspect.errors import printable
from hloinspect.hlo.model import Module
from hloinspect.kinds import ModuleFrom
from hloinspect.report.form import before_scheduling
from hloinspect.report.schema import ExplainedInfo, JudgedInfo, ModuleInfo

if TYPE_CHECKING:
    from hloinspect.measure.explained import Explained


def judged_in_dump(module: Module, info: ModuleInfo, key: str, flags: tuple[str, ...] | None) -> JudgedInfo:
    """Return what is said of a module of a dump. ``flags`` are those that the dump has of it, None where it has
    none."""
    known = "XLA flags not known" if flags is None else "XLA flags known"
    text = f"judged: {printable(key)} as XLA dumped it, schedule {info.schedule_hash}, {known}"
    return _judged(module, info, "dump", text, flags is not None)


def judged_in_profile(
    module: Module, info: ModuleInfo, explained: Explained | None, given: str = "", *, is_prediction: bool = False
) -> JudgedInfo:
    """Return what is said of the module that a profile is read with. ``given`` names where it lies where it is not in
    the profile. With ``is_prediction`` the profile was written by hloinspect, and nothing ran."""
    where = f"the module of {printable(given)}, which is not in the profile" if given else "the module in the profile"
    if explained is not None and not explained.is_trusted:
        text = f"judged: {where}, but it does not explain the events: {explained.text}"
    elif is_prediction:
        text = f"judged: {where}, which is a prediction: nothing ran"
    elif given:
        text = f"judged: {where}; {explained.text if explained else 'no event names an instruction of it'}"
    else:
        text = f"judged: {where}, which is what ran"
    return _judged(module, info, "given" if given else "profile", text, explained=_explained_info(explained))


NOTHING_JUDGED = JudgedInfo(
    "judged: events alone, since the profile holds no module of its program", "none", "", None, False
)


def _judged(
    module: Module,
    info: ModuleInfo,
    module_from: ModuleFrom,
    text: str,
    flags_known: bool = False,
    explained: ExplainedInfo | None = None,
) -> JudgedInfo:
    return JudgedInfo(text, module_from, info.schedule_hash, before_scheduling(module) or None, flags_known, explained)


def _explained_info(found: Explained | None) -> ExplainedInfo | None:
    if found is None:
        return None
    return ExplainedInfo(found.events, found.found, found.names, found.names_found, found.missing)
