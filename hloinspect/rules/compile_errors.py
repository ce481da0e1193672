"""Rule HLO308: the compiler refuses the offload."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.compile.known_errors import REFUSED
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, Found, Rule


def refused(evidence: Evidence) -> Iterator[Found]:
    """The compiler refuses the offload with an error.

    What it finds
        Errors of `hloinspect compile` and of steps that `hloinspect inspect` compiles, of known kinds. Of host memory:
        a value there that is returned without being requested there (E1200); "Side-effect ops cannot be replicated";
        "sub-chunk copy is not supported" (TPU); "not acceptable during pure memory offload" (jax before 0.5.0);
        "Expected instruction to have shape equal to" (strides on a value in host memory, or an offload in a scan in a
        scan); "Fusion must have backend config" (TPU); values of two memories in one operation; memory kinds that do
        not exist or do not agree; the crash of jax 0.9 on an operation with several operands in host memory. And:
        memory that does not suffice (E1000), unknown flags, kernels that are not registered or not lowered for the
        platform, and CUB's scratch size without a device.
    Why it matters
        The text of these errors names the compiler's problem and not the line to change. hloinspect adds the line,
        where the error names an operation or a kernel, or is about a requested placement in host memory.
    What to do
        Follow the message after the code.
    When the advice does not hold
        The error has another cause with the same text: `--verbose` of `hloinspect compile` shows the whole traceback.
    Example
        INTERNAL: Tensor which is moved to host (starting from "copy.1") is returned from the entry computation but the
        layout for this output is not set to host memory.
    References
        openxla.org/xla/errors/error_1200; openxla/xla pull requests 36525, 11354 and 17500; jax issue 24115; failures
        U14, U15, U16, U22 and U24 of docs/failures.md.
    """
    yield from ()  # this runs where a step is compiled, not over a report


RULES = (Rule(REFUSED, "compiler-refuses-offload", ERROR, (), refused),)
