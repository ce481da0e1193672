"""The verb ``plan``: a step (or MaxText, or modules that are compiled already) under everything that is to vary."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hloinspect._version import __version__
from hloinspect.analyze.inspect import read_input
from hloinspect.compile.topology import choose_topology
from hloinspect.errors import CompileError, UsageError
from hloinspect.hardware import Target, load_target, target_limits, with_link
from hloinspect.inputs.classify import STEP, classify
from hloinspect.options import CompileOptions
from hloinspect.plan.axes import FLAGS, INPUT, POLICY, TARGET, Names, flags_of, load_names, parse_axes
from hloinspect.plan.front import best, front, largest, tied_with_best, why_best, with_recomputation
from hloinspect.plan.judge import Judge, WhatIf, WritePage, Yardstick
from hloinspect.plan.model import SCHEMA, Plan, Point, TensorLine
from hloinspect.plan.policy import read_policies
from hloinspect.plan.run import room_for
from hloinspect.plan.search import search
from hloinspect.plan.session import Progress, Session
from hloinspect.plan.tensors import offloading_point, tensor_table
from hloinspect.plan.work import Settings, Subject, combinations, parse_point


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request for a plan, as on the command line. ``sources`` are one step, or modules, each with ``LABEL=``
    before it if it is to have another name; ``maxtext`` has the words of MaxText's command line instead."""

    sources: tuple[str, ...] = ()
    maxtext: tuple[str, ...] = ()
    vary: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    compiling: CompileOptions = field(default_factory=CompileOptions)
    memory_share: float = 1.0
    samples: float | None = None
    samples_axis: str | None = None
    tokens: float | None = None
    jobs: int | None = None
    points: tuple[str, ...] = ()
    tensors: bool = False
    search_s: float | None = None
    scheduler: str | None = None
    pages: WritePage | None = None
    folder: Path = field(default_factory=Path.cwd)

    @property
    def name(self) -> str:
        """Return what is planned, in one line."""
        return shlex.join(["maxtext", *self.maxtext]) if self.maxtext else " ".join(self.sources)

    def yardstick(self) -> Yardstick:
        """Return what the points are judged by: with several links it is the target's own."""
        return Yardstick(
            link=self.links[0] if len(self.links) == 1 else None,
            devices=self.compiling.devices,
            topology=self.compiling.topology,
            memory_share=self.memory_share,
            samples=self.samples,
            samples_axis=self.samples_axis,
            tokens=self.tokens,
        )


def make_plan(request: PlanRequest, on_progress: Progress | None = None) -> Plan:
    """Return the points of everything that varies, compared. Raises HloInspectError where nothing can be said at all; a
    point that fails is a row with its error."""
    started = time.monotonic()
    targets = load_targets(request)
    if not request.maxtext and not _is_step(request):
        return _plan_of_modules(request, targets, started)
    names = load_names(request.folder)
    axes = parse_axes(request.vary)
    wanted = _wanted_points(request, axes)
    check_axes(axes, wanted, names, request)
    texts = [settings[POLICY] for settings in wanted if POLICY in settings]
    with tempfile.TemporaryDirectory(prefix="hloinspect-") as scratch:
        session = Session(
            subject=subject_of(request, targets, names),
            targets=targets,
            judge=judge_for(request),
            folder=request.compiling.keep or Path(scratch),
            room=room_for(request.jobs),
            cache=request.compiling.cache,
            say=on_progress or (lambda text: None),
            policies=read_policies(dict.fromkeys([*axes.get(POLICY, ()), *texts]), names.policies),
            scheduler=request.scheduler,
        )
        plan = _carried_out(session, request, axes, wanted, started)
    return _without_scratch(plan, request.compiling.keep)


def _wanted_points(request: PlanRequest, axes: Mapping[str, Sequence[str]]) -> list[Settings]:
    points = [parse_point(text) for text in request.points]
    return points if points and not axes else [*combinations(axes), *points]


def _carried_out(
    session: Session,
    request: PlanRequest,
    axes: Mapping[str, Sequence[str]],
    wanted: Sequence[Settings],
    started: float,
) -> Plan:
    """Compile what is requested, search and look at tensors where that is requested, and compare."""
    found = tensors_of = None
    tensors: tuple[TensorLine, ...] = ()
    if request.search_s is not None:
        found = search(session, axes, request.search_s)
    else:
        session.compile(wanted)
    errors = {point.error for point in session.points}
    if len(errors) == 1 and (error := errors.pop()):
        raise CompileError(error)
    if request.tensors and (base := offloading_point(session.points)) is not None:
        tensors, tensors_of = tensor_table(session, base), base.number
    every = {name: tuple(values) for name, values in axes.items()}
    for point in session.points:
        for name, value in point.settings.items():
            if name != TARGET:
                every[name] = tuple(dict.fromkeys((*every.get(name, ()), value)))
    plan = put_together(request, every, session.targets, session.points, time.monotonic() - started)
    return replace(
        plan,
        elsewhere=tuple(sorted(session.judge.elsewhere, key=lambda one: one.point)),
        tensors=tensors,
        tensors_of=tensors_of if tensors else None,
        search=found,
        policies={text: session.code_of(text) for text in every.get(POLICY, ())},
        flags={text: " ".join(flags_of(text, session.subject.names)) for text in every.get(FLAGS, ())},
    )


def judge_for(request: PlanRequest) -> Judge:
    """Return what judges points as planned, and under the other links and on the other targets that are requested."""
    links = request.links if len(request.links) > 1 else ()
    return Judge(
        yardstick=request.yardstick(),
        what_ifs=(
            *(WhatIf(link, link=link) for link in links),
            *(WhatIf(name, target=load_target(name)) for name in dict.fromkeys(request.also)),
        ),
        pages=request.pages,
    )


def _is_step(request: PlanRequest) -> bool:
    """Return whether the input is a step. Raises UsageError where a step stands beside other inputs."""
    kinds = [classify(_labelled(source)[1]).kind for source in request.sources]
    if STEP not in kinds:
        return False
    if len(kinds) > 1:
        raise UsageError("a plan is of one step, or of several modules: a step and another input do not go together")
    return True


def load_targets(request: PlanRequest) -> dict[str, Target]:
    """Return the targets by how they were named. Raises UsageError without one, and for a link that is none."""
    if not request.targets:
        raise UsageError("say what to plan for with --target (see `hloinspect targets`)")
    targets = {name: load_target(name) for name in dict.fromkeys(request.targets)}
    for target in targets.values():
        for link in request.links:
            with_link(target, link)
    return targets


def check_axes(
    axes: Mapping[str, Sequence[str]], wanted: Sequence[Settings], names: Names, request: PlanRequest
) -> None:
    """Raise UsageError for a set of flags that is none, and for an axis that has another option."""
    if TARGET in axes:
        raise UsageError("--vary target: several targets are given as --target gb200,h100")
    for settings in wanted:
        flags_of(settings.get(FLAGS, "default"), names)
    axis = request.samples_axis
    if axis is not None and not any(axis in settings for settings in wanted):
        raise UsageError(f"--samples {axis}: nothing of that name varies")
    if request.search_s is not None and (len(request.targets) > 1 or request.points):
        raise UsageError("--search looks for one target, along the axes of --vary: leave out --point and other targets")


def subject_of(request: PlanRequest, targets: Mapping[str, Target], names: Names) -> Subject:
    """Return what is planned. Raises UsageError for a topology that one of the targets cannot have."""
    for target in targets.values():
        choose_topology(target, request.compiling.devices, request.compiling.topology)
    step = request.name if request.maxtext else request.sources[0]
    file, _, function = step.rpartition(":")
    if request.scheduler is not None and file.endswith(".py"):  # workers run elsewhere
        step = f"{Path(file).absolute()}:{function}"
    return Subject(step, request.maxtext, request.compiling, names)


def put_together(
    request: PlanRequest,
    axes: Mapping[str, Sequence[str]],
    targets: Mapping[str, Target],
    points: Sequence[Point],
    seconds: float,
) -> Plan:
    """Return the plan of these points."""
    points = with_recomputation(points)
    chosen = best(points)
    rates = [point for point in points if point.step is not None]
    known = bool(rates) and all(point.samples is not None for point in rates)
    tokens = known and all(point.tokens_per_s is not None for point in rates)
    all_axes = {name: tuple(values) for name, values in axes.items()}
    if len(targets) > 1:
        all_axes[TARGET] = tuple(targets)
    axis = request.samples_axis or ("per_device_batch_size" if request.maxtext else "batch")
    return Plan(
        schema=SCHEMA,
        hloinspect=__version__,
        source=request.name if len(request.sources) < 2 else ", ".join(axes[INPUT]),
        axes=all_axes,
        targets=tuple(targets),
        unit="tokens/s" if tokens else "samples/s" if known else "steps/s",
        points=points,
        front=front(points),
        best=chosen.number if chosen else None,
        why=why_best(chosen, points),
        tied=tied_with_best(points, chosen),
        largest=largest(points, all_axes, axis if _numbers(axes.get(axis, ())) else None),
        seconds=round(seconds, 1),
        compiled=sum(point.compile_s is not None and not point.from_cache for point in points),
        limits=_limits(points, request),
    )


def _limits(points: Sequence[Point], request: PlanRequest) -> tuple[str, ...]:
    """Return the limits of the points' reports, and those of the targets that they are judged for without being
    compiled again."""
    found = [limit for point in points for limit in point.limits]
    for name in request.also if points else ():
        found += target_limits(load_target(name), points[0].target)
    return tuple(dict.fromkeys(found))


def _numbers(values: Sequence[str]) -> bool:
    try:
        return bool([float(value) for value in values])
    except ValueError:
        return False


def _without_scratch(plan: Plan, keep: Path | None) -> Plan:
    """Return the plan without the directories that are gone when it is read."""
    if keep is not None:
        return plan
    return replace(plan, points=tuple(replace(point, directory=None) for point in plan.points))


# --- modules that are compiled already ------------------------------------------------------------


def _plan_of_modules(request: PlanRequest, targets: Mapping[str, Target], started: float) -> Plan:
    """Compare modules: nothing is compiled."""
    if request.compiling.production:
        raise UsageError(f"{request.compiling.production.option} is for compiling a step; these inputs are compiled")
    if (
        request.vary
        or request.points
        or request.compiling.xla_flags
        or request.compiling.keep
        or request.search_s
        or request.scheduler
    ):
        raise UsageError(
            "--vary, --point, --search, --xla-flag, --scheduler and --keep are for a step; these inputs are compiled"
        )
    labelled = [_labelled(source) for source in request.sources]
    labels = [label for label, _ in labelled]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise UsageError(f"two inputs are called {min(twice)}: write LABEL=PATH")
    judge = judge_for(request)
    points: list[Point] = []
    for label, path in labelled:
        reading = read_input(path)
        for name, target in targets.items():
            settings = {INPUT: label, **({TARGET: name} if len(targets) > 1 else {})}
            points.append(judge.module(len(points) + 1, settings, reading, target))
            if error := points[-1].error:
                raise UsageError(error)
    plan = put_together(request, {INPUT: labels}, targets, points, time.monotonic() - started)
    return replace(plan, elsewhere=tuple(judge.elsewhere))


def _labelled(source: str) -> tuple[str, str]:
    """Return ``offload=llama.hlo.gz`` as label and path; a path that is there is its own label."""
    label, equals, path = source.partition("=")
    if equals and label and "/" not in label and not Path(source).exists():
        return label, path
    return Path(source).name.partition(".")[0] or source, source
