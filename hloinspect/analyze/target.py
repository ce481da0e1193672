"""The target of a profile: that of ``--target``, else the one whose device the profile names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hloinspect.analyze.options import NO_TARGET, JudgeOptions
from hloinspect.errors import UsageError, printable
from hloinspect.hardware import Target, is_named, load_target, target_names, target_of_device, with_link
from hloinspect.hardware.link import rates_of
from hloinspect.kinds import TargetSource
from hloinspect.measure.measured import MeasuredFile
from hloinspect.options import CompileOptions
from hloinspect.profiles.xplane.embedded import PREDICTION_HOST
from hloinspect.units import bytes_text, listed

_SHOWN_NAME = 80


@dataclass(frozen=True, slots=True)
class ProfileTarget:
    """A profile's target (None: only the measurement is wanted, or nothing shows what it ran on), where it comes
    from, and what the report has to say of it."""

    target: Target | None
    source: TargetSource = "given"
    limits: tuple[str, ...] = ()


def given_target(judging: JudgeOptions, compiling: CompileOptions) -> Target | None:
    """Return the target of ``--target``, None without one.

    Raises TargetError for a target or a link that cannot be read, and UsageError where options need a prediction that
    ``--target none`` declines. Both are known before anything is measured.
    """
    if judging.link:
        rates_of(judging.link)
    if judging.target == NO_TARGET:
        if judging.link or compiling.devices or compiling.topology:
            raise UsageError(
                "--link, --devices and --topology are for a prediction beside the measurement: --target none has none"
            )
        return None
    return load_target(judging.target) if isinstance(judging.target, str) else judging.target


def target_of_profile(
    given: Target | None, judging: JudgeOptions, compiling: CompileOptions, files: Sequence[MeasuredFile]
) -> ProfileTarget:
    """Return the target to predict for. ``given`` is what ``given_target`` returned.

    Raises UsageError where ``--link``, ``--devices`` or ``--topology`` need a target, and none is given and the
    profile's device has none.
    """
    if judging.target == NO_TARGET or any(file.host == PREDICTION_HOST for file in files):
        chosen = ProfileTarget(given)
    elif given is not None:
        chosen = ProfileTarget(given, limits=_contradiction(given, files))
    else:
        chosen = _inferred(files)
    if chosen.target is None:
        if judging.link or compiling.devices or compiling.topology:
            raise UsageError(
                "--link, --devices and --topology are for a prediction beside the measurement: add --target"
                f" ({_why_none(files)})"
            )
        return chosen
    if judging.link:
        return ProfileTarget(with_link(chosen.target, judging.link), chosen.source, chosen.limits)
    return chosen


def _inferred(files: Sequence[MeasuredFile]) -> ProfileTarget:
    devices = _devices(files)
    found = {target_of_device(name, size) for name, size in devices}
    name = found.pop() if len(found) == 1 else None
    if name is not None:
        return ProfileTarget(load_target(name), "profile")
    return ProfileTarget(None, limits=(f"no prediction beside the measurement: {_why_none(files)}",) if devices else ())


def _why_none(files: Sequence[MeasuredFile]) -> str:
    devices = _devices(files)
    if not devices:
        return "the profile does not name its device"
    names = listed([_text(name, size) for name, size in devices], 3)
    known = {target_of_device(name, size) for name, size in devices}
    if None not in known:
        return f"the profile's devices are of different targets: {names}"
    return f"no target has the name of the profile's device, {names}; --target NAME takes the nearest"


def _contradiction(target: Target, files: Sequence[MeasuredFile]) -> tuple[str, ...]:
    """Return a limit where the profile's devices are others than those of the given target."""
    others = [(name, size) for name, size in _devices(files) if not is_named(target.device_names, name)]
    if not target.device_names:
        return _unnamed(target, files)
    if not others:
        return ()
    own = " or ".join(sorted({known for name, size in others if (known := target_of_device(name, size))}))
    names = listed([_text(name, size) for name, size in others], 3)
    return (
        f"the profile's device is {names}{f', which is {own}' if own else ''}: the prediction for {target.name} is one "
        "for another machine",
    )


def _unnamed(target: Target, files: Sequence[MeasuredFile]) -> tuple[str, ...]:
    """Return a limit where the profile's device is known, and the given target is one of ours whose devices are not
    out yet. A user's own target without names may be any machine."""
    known = {name: own for name, size in _devices(files) if (own := target_of_device(name, size))}
    if not known or target.name not in target_names():
        return ()
    names = listed([f"{printable(name[:_SHOWN_NAME])} ({own})" for name, own in known.items()], 3)
    return (f"the profile's device is {names}; {target.name} has no names of devices, so it may be another machine",)


def _devices(files: Sequence[MeasuredFile]) -> list[tuple[str, int | None]]:
    """Return the names of devices that the files have, each once, with their memory where that is known."""
    return list(dict.fromkeys((file.device_type, file.device_bytes or None) for file in files if file.device_type))


def _text(name: str, memory_bytes: int | None) -> str:
    known = target_of_device(name)
    is_other_size = known is not None and target_of_device(name, memory_bytes) is None
    size = f" with {bytes_text(memory_bytes)}" if is_other_size and memory_bytes else ""
    return f"{printable(name[:_SHOWN_NAME])}{size}"
