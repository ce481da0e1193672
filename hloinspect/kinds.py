"""The words that fields of results may hold, as closed sets, and the thresholds of the verdicts.

A set is declared here where results of several rooms have it. Whoever decides between its words keeps them as
constants; those of a direction are here, since many rooms need them. ``words_of`` gives the words of a set in the order
in which they are declared.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

# ---- transfers

Direction = Literal["d2h", "h2d"]
"""Device to host, and host to device."""

D2H: Final = "d2h"
H2D: Final = "h2d"

Mechanism = Literal["dma", "kernel", "unknown"]
"""What moves the bytes: a copy engine, or a kernel that reads or writes host memory."""

Verdict = Literal["hidden", "partial", "exposed", "synchronous", "unknown"]

Outcome = Literal["round trip", "argument", "result", "host copy", "never read", "never written"]
"""What the other end of a transfer's host buffer is."""

Binding = Literal["window", "queue", "link", "barrier", "collective", "elsewhere", "synchronous"]
"""What keeps a transfer from being hidden."""

HostValueKind = Literal["parameter", "result"]

HostEventKind = Literal[
    "host_compute", "callback", "send", "recv", "infeed", "outfeed", "annotation", "many_results"
]  # fmt: skip
"""What an instruction does with the host that is no transfer."""

# ---- modules, targets and memory

Platform = Literal["gpu", "tpu"]
"""What can be compiled for."""

ModulePlatform = Literal["gpu", "tpu", "cpu", "unknown"]

InputKind = Literal["step", "text", "proto", "compiled", "dump", "trace"]

TargetSource = Literal["given", "input", "profile"]
"""Who named the target: the user, a manifest or dump of the compilation, or a profile by the name of its device."""

MemorySource = Literal["artifacts", "estimated", "unknown"]
"""Where figures of memory come from: XLA's own, or the live ranges of the schedule."""

LiveValueKind = Literal["argument", "result", "temporary"]

# ---- placements

RequestedFrom = Literal["jaxpr", "stablehlo", "hlo"]
"""Where it was read what a program requests of host memory."""

PlacementKind = Literal["value", "argument", "result", "compute", "name"]

PlacementBy = Literal["policy", "device_put", "sharding", "annotation", "compute_on", "flag"]
"""What requests a placement."""

PlacementOutcome = Literal[
    "kept", "synchronous", "kernel", "merged", "host compute", "dropped", "unused", "never matched"
]  # fmt: skip

PlacementCause = Literal[
    "folded", "dead", "constant", "lowering", "memory kind", "unknown name", "not needed", "no transfer"
]  # fmt: skip
"""Why a requested placement is not there."""

ItemKind = Literal[
    "annotation_d2h", "annotation_h2d", "mark_d2h", "mark_h2d", "host_buffer", "copy_d2h", "copy_h2d", "slice_d2h",
    "slice_h2d", "kernel_d2h", "kernel_h2d", "async_d2h", "async_h2d", "async_kernel", "host_copy", "host_compute",
    "host_mark",
]  # fmt: skip
"""What the ledger of compiler passes counts."""

# ---- traces

HostMemory = Literal["pinned", "pageable", "managed", "unstated"]
"""The host's side of a copy, by the profiler. ``unstated`` is a profile that does not name it."""

CopyOrigin = Literal["eager", "callback", "program"]
"""What makes a copy that is no transfer of the step: no instruction at all, an instruction of the step that is no
offload, or another program."""

Basis = Literal["predicted", "measured"]
"""What figures are: those of the model, or those of a trace."""

ClassifiedBy = Literal["hlo", "memcpy", "name"]
"""What shows of an event of a trace what it is."""

ExpectedStatus = Literal["same", "other kernels", "other order", "same transfers", "different"]
"""How far two modules are the same, from the most: the same schedule and kernels, the same schedule, the same
instructions, the same transfers, or not even those."""

ComparedKind = Literal["compiled", "module", "dump", "profile"]
"""What a module is compared with: what ``hloinspect compile`` wrote, a file with a module, a directory of
``--xla_dump_to``, or a profile."""

ModuleFrom = Literal["profile", "given", "dump", "none"]
"""Where the module of a report on a run comes from; ``given``: it was given beside the profile."""

SetAsideReason = Literal[
    "cut by the trace's begin",
    "cut by the trace's end",
    "events are missing or unpaired",
    "warm-up",
    "rates that cannot be",
    "the clock jumped",
    "outside the step annotations",
]
"""Why a step of a trace does not count."""

InstructionClass = Literal[
    "matmul", "attention", "convolution", "custom call", "scatter", "gather", "sort", "reduce", "transpose",
    "dynamic-update-slice", "concatenate", "copy", "loop", "all-gather", "all-reduce", "reduce-scatter", "all-to-all",
    "collective-permute", "other collective", "d2h", "h2d", "host copy", "callback", "control flow", "other",
    "unknown",
]  # fmt: skip
"""What an instruction does, by its opcode, the call that it makes, or the hero of its fusion (docs/trace.md).
``loop`` is elementwise work, ``copy`` is within device memory, ``d2h`` and ``h2d`` are host transfers."""

COLLECTIVE_CLASSES: frozenset[InstructionClass] = frozenset(
    {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "other collective"}
)

# ---- findings

Severity = Literal["error", "warning", "info"]
"""From the worst to the mildest."""

Affects = Literal["time", "memory", "transfers", "audit"]
"""Which figures are in doubt where something is unknown. ``transfers``: some may be missing."""

# ---- gates

GateStatus = Literal["passed", "failed", "unknown", "error"]

BudgetStatus = Literal["within", "over", "unknown", "missing"]
"""``missing``: the baseline has nothing to compare with."""

BudgetOp = Literal["=", "+"]
"""A limit by itself, and a tolerance over the baseline."""

Amount = Literal["time", "size", "count"]
"""What a metric measures."""

MetricUnit = Literal["ms", "bytes", "count"]

BudgetUnit = Literal["%", "ms", "bytes", "count"]

ChangeKind = Literal["came", "went", "changed"]

NoteKind = Literal["found", "left out", "could not look", "undecided"]
"""What there is to say of a rule that no budget passes over, beside its errors."""

# ---- plans and MaxText

PlanUnit = Literal["tokens/s", "samples/s", "steps/s"]

Advice = Literal["offload", "recompute", "keep"]

SearchEnd = Literal["no single change is faster", "its time was over"]

Tensors = Literal["offload", "remat", "save"]
"""What becomes of a step's offloaded tensors: as configured, computed again, or kept on the device."""

# ---- verdicts

HIDDEN_SHARE = 0.95
"""A transfer of which at least this share of its time is covered by compute or a collective is hidden."""

EXPOSED_SHARE = 0.10
"""One of which less than this is covered is exposed; in between it is partial."""

HIDDEN: Final = "hidden"
PARTIAL: Final = "partial"
EXPOSED: Final = "exposed"
SYNCHRONOUS: Final = "synchronous"
UNKNOWN: Final = "unknown"


def words_of(kind: object) -> tuple[str, ...]:
    """Return the words of a closed set (``words_of(Verdict)``), in the order in which they are declared."""
    return get_args(kind)


def verdict_of(duration_ps: int, cover_ps: int, wait_ps: int = 0, gain_ps: int | None = None) -> Verdict:
    """Return the verdict on an asynchronous transfer by the covered share of its duration. One that takes no time is
    hidden.

    A collective can cover a transfer while the main stream waits for it. So a covered transfer is hidden only if it is
    hardly waited for, or if the step would not be shorter without it (``gain_ps``, None where that is not known).
    """
    if duration_ps <= 0:
        return HIDDEN
    share = cover_ps / duration_ps
    if share >= HIDDEN_SHARE:
        slack = (1 - HIDDEN_SHARE) * duration_ps
        return HIDDEN if wait_ps <= slack or (gain_ps is not None and gain_ps <= slack) else PARTIAL
    return EXPOSED if share < EXPOSED_SHARE else PARTIAL
