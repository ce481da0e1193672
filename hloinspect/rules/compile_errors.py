"""HLO308: errors with which compilers refuse an offload, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hloinspect.errors import CompileError
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, Found, Rule

CODE = "HLO308"


@dataclass(frozen=True, slots=True)
class Known:
    """An error that is known: what its text matches, and what to do about it."""

    pattern: re.Pattern[str]
    remedy: str


KNOWN = (
    Known(
        re.compile(r"moved to host .*returned from the entry computation|\bE1200\b", re.DOTALL),
        "a value that the step places in host memory is a result, and the result is not asked for there: give "
        'out_shardings with memory_kind="pinned_host" for it (jax 0.9 loses that where it compiles for a GPU without a '
        "device: use jax 0.10 or later)",
    ),
    Known(
        re.compile(r"Side-effect ops cannot be replicated"),
        "the placement of an unsharded value met the partitioner: give the value a sharding "
        "(jax.lax.with_sharding_constraint) in front of it, with an XLA later than April 2024",
    ),
    Known(
        re.compile(r"sub-chunk copy is not supported in async dynamic slice"),
        "a TPU cannot copy slices below one tile: offload larger slices, or keep this one on the device",
    ),
    Known(
        re.compile(r"not acceptable during pure memory offload"),
        "an operation works on a value in host memory: fetch it first; since jax 0.5.0 this is a slow computation "
        "over the link instead of an error",
    ),
    Known(
        re.compile(r"cudaErrorInvalidDevice"),
        "a sort or ragged product asks a CUDA library for its scratch size without a device: add --xla-flag "
        "xla_gpu_deviceless_cub_mode=DEVICELESS_CUB_DISABLED",
    ),
)


def explained(error: CompileError) -> CompileError:
    """The same error with what to do about it, where it is a known one."""
    text = f"{error} {error.detail}"
    for known in KNOWN:
        if known.pattern.search(text):
            return CompileError(f"{error}; {CODE}: {known.remedy}", error.detail)
    return error


def refused(evidence: Evidence) -> Iterator[Found]:
    """The compiler refuses the offload with an error.

    What it finds
        Errors of `hloinspect compile` and of steps that `hloinspect inspect` compiles, of five known kinds: a value in
        host memory that is returned without being asked for there (E1200); "Side-effect ops cannot be replicated";
        "sub-chunk copy is not supported" (TPU); "not acceptable during pure memory offload" (jax before 0.5.0); and
        CUB's scratch size without a device.
    Why it matters
        The text of these errors names the compiler's trouble and not the line to change.
    What to do
        What the message says behind the code.
    When the advice does not hold
        E1200 under jax 0.9, which drops memory kinds of results when it compiles for a GPU without a device, however
        they are asked for: examples/optimizer.py fails there and compiles under jax 0.10.
        The error has another cause with the same text: `--verbose` of `hloinspect compile` shows the whole traceback.
    Example
        INTERNAL: Tensor which is moved to host (starting from "copy.1") is returned from the entry computation but the
        layout for this output is not set to host memory.
    References
        openxla.org/xla/errors/error_1200; openxla/xla pull requests 36525, 11354 and 17500; jax issue 24115; failures
        U14, U15, U16 and U22 of docs/failures.md.
    """
    yield from ()  # it speaks where a step is compiled, not over a report


RULES = (Rule(CODE, "compiler-refuses-offload", ERROR, (), refused),)
