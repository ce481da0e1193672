"""Errors with which compilers refuse an offload, and what they mean (the rule HLO308)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hloinspect.compile.versions import BUT_NOT
from hloinspect.errors import CompileError

REFUSED = "HLO308"
"""The code of the rule that these errors belong to (rules/compile_errors.py)."""


@dataclass(frozen=True, slots=True)
class Known:
    """An error that is known: what its text matches (with DOTALL), and what to do about it.

    The pattern is compiled when an error is looked at, since every command imports this.
    """

    pattern: str
    remedy: str


KNOWN = (
    Known(
        r"moved to host .*returned from the entry computation|\bE1200\b",
        "a value that the step places in host memory is a result, and the result is not requested there: give "
        'out_shardings with memory_kind="pinned_host" for it, which is the one kind that can be returned. Where the '
        "error names an argument of a step for a TPU, and jax.checkpoint fetches that argument in the forward and in "
        "the backward pass: jax.lax.optimization_barrier around the argument, in front of jax.device_put",
    ),
    Known(
        r"Fusion must have backend config|caller must be an async computation",
        "known of libtpu where jax.checkpoint fetches an argument in host memory in the forward and in the backward "
        "pass: put jax.lax.optimization_barrier around the argument, in front of jax.device_put. It is then fetched "
        "once and kept; in a lax.scan over layers each iteration fetches its own",
    ),
    Known(
        r"Side-effect ops cannot be replicated",
        "the placement of an unsharded value met the partitioner: give the value a sharding "
        "(jax.lax.with_sharding_constraint) in front of it, with an XLA later than April 2024",
    ),
    Known(
        r"sub-chunk copy is not supported in async dynamic slice",
        "a TPU cannot copy slices below one tile: offload larger slices, or keep this one on the device",
    ),
    Known(
        r"not acceptable during pure memory offload",
        "an operation works on a value in host memory: fetch it first; since jax 0.5.0 this is a slow computation "
        "over the link instead of an error",
    ),
    Known(
        r"Check failed: instruction->operand_count\(\) == 1 Expecting instruction",
        "XLA of jax 0.9 crashes where an operation with several operands works on a value in host memory (an index "
        "of rows there, as of an embedding): fetch the value first, or use a later jax" + BUT_NOT,
    ),
    Known(
        r"Expected instruction to have shape equal to .*dynamic-slice",
        "a slice with strides is taken of a value in host memory: fetch whole rows, and stride on the device",
    ),
    Known(
        r"Expected instruction to have shape equal to .*S\(5\)|expects the shape of operand .*S\(5\)",
        "XLA leaves the stack of an inner loop on the device: offload in the outer loop (its layers computed again), "
        "or unroll the inner one",
    ),
    Known(
        r"RESOURCE_EXHAUSTED|\bE1000\b|[Oo]ut of memory",
        "the step needs more memory than the target has: more devices (--devices), a smaller batch, or more values "
        "recomputed or offloaded (docs/memory.md)",
    ),
    Known(
        r"Couldn't find output tile sizes",
        "a product is too large for XLA's Triton kernels: shard it over more devices, or compile with --xla-flag "
        "xla_gpu_enable_triton_gemm=false",
    ),
    Known(
        r"No such compile option: '",
        "the XLA of this jax does not know the flag: look for a typing error (also in XLA_FLAGS of the environment), "
        "or for the jax that brought it",
    ),
    Known(
        r"No FFI handler registered for|Custom emitter for .* not found",
        "a kernel of one's own is known to XLA only where its library is loaded and has code for this platform: import "
        "it in the step's file, or give the dump of a run (--xla_dump_to) instead of the step",
    ),
    Known(
        r"Cannot lower pallas_call on platform",
        "this jax lacks what lowers Pallas kernels for GPUs: use jax 0.10 or later with its CUDA plugin" + BUT_NOT,
    ),
    Known(
        r"memory_space of all inputs passed to",
        "one of the values is in host memory and the other is not: jax.device_put it to the device first",
    ),
    Known(
        r"Unknown memory kind|Could not find memory addressable by device",
        "memory kinds are device and pinned_host, and on TPUs unpinned_host",
    ),
    Known(
        r"Memory kinds passed to jax\.jit does not match",
        "in_shardings and the argument's own sharding name different memories: make them the same",
    ),
    Known(
        r"cudaErrorInvalidDevice",
        "a sort or ragged product needs its scratch size from a CUDA library, which has no device: add --xla-flag "
        "xla_gpu_deviceless_cub_mode=DEVICELESS_CUB_DISABLED",
    ),
)


def explained(error: CompileError) -> CompileError:
    """Return the same error with what to do about it, where it is a known one."""
    text = f"{error} {error.detail}"
    for known in KNOWN:
        if re.search(known.pattern, text, re.DOTALL):
            return CompileError(f"{error}; {REFUSED}: {known.remedy}", error.detail, REFUSED)
    return error
