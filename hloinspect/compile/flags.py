"""XLA flags as a user writes them, turned into ``compiler_options`` of ``jax.stages.Lowered.compile``.

An unknown flag in the XLA_FLAGS variable kills the process; as a compiler option it is an ordinary error.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from hloinspect.errors import CompileError

VARIABLE = "XLA_FLAGS"

Option = bool | int | float | str

_FLAG = re.compile(r"(?:--)?(?P<name>[a-z][a-z0-9_]*)(?:=(?P<value>.*))?", re.DOTALL)
_BOOLS = {"true": True, "false": False}
_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
_PIPELINING = {f"xla_gpu_pipeline_{name}": f"xla_gpu_enable_pipelined_{name}" for name in _COLLECTIVES}
"""New names and old ones. XLA_FLAGS takes both, and ``on`` for what an option wants as the name of an enum's value
(XLA's own help in jaxlib 0.12: true of the old name maps to on, false to default)."""


def compiler_options(flags: Iterable[str]) -> dict[str, Option]:
    """Return ``--xla_foo=bar``, ``xla_foo=bar`` or ``--xla_foo`` (true), each as one option; the last of a name wins.

    true and false become bools, and on, off, default and explicit of ``xla_gpu_pipeline_*`` names of the enum.
    Everything else stays text, which XLA converts by the flag's own type.
    Raises CompileError where a flag is not of this form.
    """
    options: dict[str, Option] = {}
    for flag in flags:
        match = _FLAG.fullmatch(flag.strip())
        if match is None:
            raise CompileError(f"{flag!r} is not an XLA flag: write --xla_name=value, or --xla_name for true")
        value = match["value"]
        options[match["name"]] = True if value is None else _BOOLS.get(value.lower(), value)
        if match["name"] in _PIPELINING and value and value.islower():
            options[match["name"]] = _mode(value)
    return options


_NOT_OURS = ("xla_dump_", "xla_force_host_platform_device_count", "xla_gpu_shard_autotuning")
"""Nothing that the module depends on: where a run's dumps go, how many devices a CPU plays, who of its processes tunes
(MaxText sets that)."""
_OTHERS = {"gpu": ("xla_tpu_", "xla_cpu_"), "tpu": ("xla_gpu_", "xla_cpu_")}
"""Flags of the other platforms, which a compiler may refuse."""
_MOST_BYTES = 1 << 20


def flags_in(text: str, platform: str) -> list[str]:
    """Return the flags of an ``XLA_FLAGS`` that a module of ``platform`` ("gpu" or "tpu") depends on.

    What does not begin with a dash names a file of flags, as for XLA (xla/parse_flags_from_env.cc). Raises CompileError
    where the text or the file cannot be read.
    """
    text = text.strip()
    if text and not text.startswith("-") and "=" not in text.split()[0]:
        text = _file_of_flags(text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CompileError(f"{VARIABLE} cannot be read: {error}") from None
    return [word for word in words if not name_of_flag(word).startswith(_NOT_OURS + _OTHERS[platform])]


def _file_of_flags(name: str) -> str:
    try:
        with Path(name).open(encoding="utf-8") as file:
            return file.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CompileError(f"{VARIABLE} names the file {name[:200]!r}, which cannot be read: {reason}") from None


def _mode(value: str) -> str:
    return f"COLLECTIVE_PIPELINING_MODE_{value.upper()}"


def renamed(options: Mapping[str, Option], refused: str) -> dict[str, Option] | None:
    """Return ``options`` with the one that this XLA does not know under its new name; None where there is no other
    name."""
    for new, old in _PIPELINING.items():
        if refused == old and old in options:
            rest = {name: value for name, value in options.items() if name != old}
            return {new: _mode("on" if options[old] in (True, "1") else "default"), **rest}
    return None


def name_of_flag(flag: str) -> str:
    """Return the name of a flag as a user writes it; "" for what is none."""
    match = _FLAG.fullmatch(flag.strip())
    return match["name"] if match else ""


def aliases_of(name: str) -> tuple[str, ...]:
    """Return a flag's name and the other one that XLA has for it, if there is one."""
    others = [b for a, b in _PIPELINING.items() if a == name] + [a for a, b in _PIPELINING.items() if b == name]
    return (name, *others)
