"""Whether the profiled program is the one that was checked. Names do not count."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hloinspect.errors import InputError
from hloinspect.hlo.load import load_module
from hloinspect.hlo.model import Computation, Module, Operand
from hloinspect.kinds import ExpectedStatus
from hloinspect.offload.program import Program
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.report.build import BOOKKEEPING, module_info, spelling
from hloinspect.report.schema import ExpectedInfo, Report
from hloinspect.units import listed

SAME: Final = "same"
SAME_TRANSFERS: Final = "same transfers"
DIFFERENT: Final = "different"
_MAX_HOPS = 16


def compare(report: Report, offload: Offload, expect: str) -> ExpectedInfo:
    """Return whether the module of a trace is that of ``expect``: a directory or manifest of ``hloinspect compile``, or
    a file with a module. Raises InputError where that cannot be read."""
    module, versions = _load(expect)
    wanted = find_offload(module)
    info = module_info(wanted.program)
    differences = list(_versions(report, versions))
    if info.schedule_hash == report.module.schedule_hash and structure(wanted.program) == structure(offload.program):
        return ExpectedInfo(expect, SAME, info.schedule_hash, tuple(differences))
    if info.fingerprint != report.module.fingerprint:
        had, has = info.instructions, report.module.instructions
        differences.insert(0, f"other instructions were scheduled ({had:,} expected, {has:,} ran)")
    else:
        differences.insert(0, "the same kinds of instructions in another order, or of other shapes")
    moved = _moved(wanted, offload)
    differences += moved
    status: ExpectedStatus = DIFFERENT if moved or not (wanted.transfers or offload.transfers) else SAME_TRANSFERS
    return ExpectedInfo(expect, status, info.schedule_hash, tuple(differences))


def _load(expect: str) -> tuple[Module, dict[str, str]]:
    path = Path(expect)
    if path.is_dir() or path.name == "manifest.json":
        from hloinspect.inputs.manifest import load_result

        result = load_result(path if path.is_dir() else path.parent)
        manifest = result.manifest
        versions = {name: text for name in ("jax", "jaxlib") if (text := manifest.versions.get(name))}
        if manifest.xla_flags:
            versions["flags"] = " ".join(manifest.xla_flags)
        return load_module(result.module_proto), versions
    if not path.exists():
        raise InputError(f"{expect}: no such file or directory; --expect takes what `hloinspect compile` wrote, or HLO")
    return load_module(path), {}


def _versions(report: Report, versions: dict[str, str]) -> Sequence[str]:
    found = []
    for name, has in (("jax", report.program.jax), ("jaxlib", report.program.jaxlib)):
        had = versions.get(name)
        if had and has and had != has:
            found.append(f"{name} {had} expected, {has} ran")
    if flags := versions.get("flags"):
        found.append(f"a trace does not hold XLA flags; expected were {flags}")
    return found


def _moved(wanted: Offload, offload: Offload) -> Sequence[str]:
    """Return the transfers that are on one side only, by direction, bytes and executions."""

    def kinds(one: Offload) -> Counter[tuple[str, int, int]]:
        return Counter((t.direction, t.bytes, t.executions) for t in one.transfers)

    expected, ran = kinds(wanted), kinds(offload)
    found = []
    for title, rest in (("expected and not run", expected - ran), ("run and not expected", ran - expected)):
        shown = [f"{count} x {d2h} of {size:,} B x{times}" for (d2h, size, times), count in sorted(rest.items())]
        if shown:
            found.append(f"transfers {title}: {listed(shown, 3)}")
    return found


def structure(program: Program) -> str:
    """Return a hash of what runs and in which order: opcodes, shapes of results, and which results are used, by place.
    Names do not count, nor does how the module is printed: one text has ``%t#1`` where another has a
    get-tuple-element."""
    digest = hashlib.sha256()
    for computation in program.computations():
        for line in _lines(program.module, computation):
            digest.update(line.encode("utf-8", "replace"))
        digest.update(b"}")
    return digest.hexdigest()[:16]


def _lines(module: Module, computation: Computation) -> Sequence[str]:
    found: list[str] = []
    places: dict[str, str] = {}
    for instruction in computation:
        if instruction.opcode == "parameter":
            places[instruction.name] = f"p{instruction.parameter_number}"
        if instruction.opcode in BOOKKEEPING:
            continue
        places[instruction.name] = str(len(found))
        leaves = [f"{leaf.dtype}{leaf.dims}{leaf.memory_space}" for _, leaf in instruction.shape.leaves if leaf.dims]
        used = [_used(module, computation, operand, places) for operand in instruction.operands]
        found.append(f"{spelling(instruction.opcode)} {leaves} {used}\n")
    return found


def _used(module: Module, computation: Computation, operand: Operand, places: Mapping[str, str]) -> str:
    """Return the place of what makes an operand's value, and the path into it."""
    for _ in range(_MAX_HOPS):
        made, path = module.resolve(computation, operand)
        if made is None:
            return "?"
        if made.opcode != "bitcast" or not made.operands:
            return f"{places.get(made.name, made.opcode)}{list(path)}"
        operand = made.operands[0]
    return "?"
