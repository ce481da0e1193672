"""What is to vary: ``--vary NAME=VALUE,VALUE``, sets of flags, and the names that pyproject.toml gives to both::

[tool.hloinspect.plan.policies]
mine = "offload:hid/save:qkv"

[tool.hloinspect.plan.flags]
cluster = ["--xla_gpu_enable_triton_gemm=false", "--xla_gpu_enable_latency_hiding_scheduler=true"]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hloinspect.compile.flags import compiler_options
from hloinspect.errors import CompileError, UsageError
from hloinspect.rules.config import find_project

POLICY, FLAGS, TARGET = "policy", "flags", "target"
MAXTEXT_POLICY = "remat_policy"
MAXTEXT_OUTCOMES = ("remat", "device", "offload")
"""What MaxText's keys of single tensors say."""
INPUT = "input"
"""What varies where the inputs are modules."""

KNOWN_FLAGS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "pipelined": ("xla_gpu_enable_pipelined_host_offloading=true",),
    "pipelined-collectives": tuple(
        f"xla_gpu_enable_pipelined_{kind}=true" for kind in ("all_gather", "reduce_scatter", "all_reduce")
    ),
    "double-buffered": ("xla_gpu_enable_while_loop_double_buffering=true",),
    "lhs": ("xla_gpu_enable_latency_hiding_scheduler=true",),
    "no-lhs": (
        "xla_gpu_enable_latency_hiding_scheduler=false",
        "xla_gpu_enable_analytical_sol_latency_estimator=false",
    ),
    "lhs-tshirt": (
        "xla_gpu_enable_latency_hiding_scheduler=true",
        "xla_gpu_enable_analytical_sol_latency_estimator=false",
    ),
    "cublas": ("xla_gpu_enable_triton_gemm=false",),
    "no-xla-remat": ("xla_disable_hlo_passes=rematerialization",),
    # up to jax 0.10.1 the second pass makes copies of slices, from 0.10.2 on the first
    "kernel-slices": ("xla_disable_hlo_passes=dynamic-slice-annotator,fusion-dynamic-memcpy-rewriter",),
    "o1": ("optimization_level=O1",),
}
"""Sets of flags with a name (facts: XLA's flags for host offloading; Hopper and Blackwell turn the latency-hiding
scheduler on by themselves, by the analytical estimator)."""

Value = bool | int | float | str | None

_MOST_POINTS = 10_000
_WORDS: Mapping[str, Value] = {"true": True, "false": False, "none": None}
_INTEGER, _NUMBER = re.compile(r"[+-]?\d+"), re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Names:
    """Policies and sets of flags with a name: hloinspect's own, and those of pyproject.toml."""

    policies: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(KNOWN_FLAGS))


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each name in ``batch=1,2,4`` and the like, as they are written, without repeats, in order.
    Raises UsageError."""
    axes: dict[str, tuple[str, ...]] = {}
    points = 1
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"--vary {text}: write NAME=VALUE,VALUE, such as batch=1,2,4")
        if name in axes:
            raise UsageError(f"--vary {name} is given twice: write all its values in one")
        found = tuple(dict.fromkeys(value.strip() for value in values.split(",")))
        if not all(found):
            raise UsageError(f"--vary {text}: a value is empty")
        axes[name] = found
        points *= len(found)
        if points > _MOST_POINTS:
            raise UsageError(f"--vary {name}: more than {_MOST_POINTS:,} points")
    return axes


def policy_label(settings: Mapping[str, str]) -> str:
    """Return what a point's settings say of policies: the policy itself, and MaxText's keys of one. It is empty where
    they say nothing."""
    return " ".join(
        value if name == POLICY else f"{name}={value}"
        for name, value in settings.items()
        if name in (POLICY, MAXTEXT_POLICY) or value in MAXTEXT_OUTCOMES
    )


def without_policy(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the settings that say what a step computes, and not how: all but policies, flags and inputs."""
    how = (POLICY, MAXTEXT_POLICY, FLAGS, INPUT)
    return tuple(item for item in settings.items() if item[0] not in how and item[1] not in MAXTEXT_OUTCOMES)


def literal(text: str) -> Value:
    """Return the value that a step gets: a whole number, a number, true, false, none, or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text


def flags_of(text: str, names: Names, common: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the flags that a set's name stands for, after those that all points have. Several names may be given with
    + between. Raises UsageError for an unknown name."""
    flags = list(common)
    for name in text.split("+"):
        if name not in names.flags:
            raise UsageError(
                f"flags {name!r} is no set of flags: known are {', '.join(names.flags)}; others can be named in "
                f"[tool.hloinspect.plan.flags] of pyproject.toml"
            )
        flags += names.flags[name]
    return tuple(flags)


def load_names(folder: Path) -> Names:
    """Return the names that hold in a folder: those of the nearest pyproject.toml go before hloinspect's own. Raises
    UsageError, one line with the file and the key, for a faulty one."""
    found = find_project(folder)
    if found is None:
        return Names()
    own = found.table.plan
    for name, flags in own.flags.items():
        try:
            compiler_options(flags)
        except CompileError as error:
            raise UsageError(f"{found.where(f'plan.flags.{name}')}: {error}") from None
    return Names(own.policies, {**KNOWN_FLAGS, **own.flags})
