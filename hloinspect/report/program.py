"""How a module was made, as a report has it, from the manifest of a compilation."""

from __future__ import annotations

from collections.abc import Mapping

from hloinspect.compile.versions import RESULTS_PLACED_SINCE, comparable
from hloinspect.errors import TargetError
from hloinspect.hardware import load_target
from hloinspect.inputs.manifest import NOTE_UNKNOWN_SHARDINGS, NOTES_THAT_LIMIT, Manifest
from hloinspect.report.schema import AutotuneInfo, ProfileInfo, ProgramInfo, Unknown
from hloinspect.units import bytes_text

LIMIT_AUTOTUNING = "compiled without a device, so without autotuning: deployed kernels may differ"


def program_of(manifest: Manifest) -> ProgramInfo:
    """Return the report's ``program``. ``autotuned`` is True where every kernel has an entry in the given results."""
    use = manifest.production
    results, profile = use.autotune_results, use.pgle
    return ProgramInfo(
        jax=manifest.versions.get("jax"),
        jaxlib=manifest.versions.get("jaxlib"),
        flags=manifest.xla_flags,
        topology=manifest.topology,
        autotuned=results is not None and results.missing == 0,
        flags_from=use.flags_from.path if use.flags_from else None,
        autotune_results=AutotuneInfo(results.path, results.missing, results.of) if results else None,
        pgle=ProfileInfo(profile.path, profile.matched, profile.of) if profile else None,
        configuration=manifest.configuration,
    )


def limits_of(manifest: Manifest) -> tuple[str, ...]:
    """Return what limits a report on the module: what the production run has and this compilation did not have, and
    what of the installation is not as in a run."""
    limits = [note for note in manifest.notes if any(words in note for words in NOTES_THAT_LIMIT)]
    if manifest.platform == "tpu":
        return tuple(limits)
    use = manifest.production
    results, profile, run = use.autotune_results, use.pgle, use.flags_from
    if results is None:
        limits.append(LIMIT_AUTOTUNING)
    elif results.missing:
        kernels = f"{results.missing} of {results.of} kernels have" if results.of else "one kernel has"
        limits.append(
            f"{kernels} no entry in the autotuning results {results.path}, and deployed ones may differ "
            "(the manifest's notes say more)"
        )
    if profile is not None and not profile.matched:
        limits.append(
            f"the PGLE profile {profile.path} is of another module: none of its {profile.of} costs names an "
            "instruction of this one"
        )
    if run is not None and (unknown := [name for name, reason in run.left_out if reason.startswith("this XLA")]):
        limits.append(f"flags of {run.path} that this XLA refuses were left out: {', '.join(unknown)}")
    return tuple(limits)


def unknown_of(manifest: Manifest) -> tuple[Unknown, ...]:
    """Return what was not known while the step was lowered, and so is unknown of every figure of the module."""
    remedy = "give those arguments a sharding (jax.device_put, out_shardings)"
    if comparable(manifest.versions.get("jax") or "") < RESULTS_PLACED_SINCE:
        remedy += ", or use jax 0.10 or later, which says where results are"
    return tuple(Unknown(note, remedy, "transfers") for note in manifest.notes if NOTE_UNKNOWN_SHARDINGS in note)


def assigned_on_device(manifest: Manifest) -> tuple[int | None, tuple[str, ...]]:
    """Return the bytes of device memory by the compiler's figures, and what to say of them. None where they cannot be
    right: libtpu refuses a step that does not fit, and for large steps its figures add up to more than the chip has."""
    size = assigned_bytes(manifest.memory, "")
    if manifest.platform != "tpu":
        return size, ()
    try:
        most = load_target(manifest.target).hbm_bytes.value
    except TargetError:  # a target of a file that is not at hand
        return size, ()
    if size <= most:
        return size, ()
    return None, (
        f"libtpu's figures of device memory add up to {bytes_text(size)}, more than a {manifest.target} has, although "
        "libtpu accepted the step: device memory is estimated from the schedule instead",
    )


def assigned_bytes(memory: Mapping[str, int], prefix: str) -> int:
    """Return the bytes of arguments, temporaries and results that are not arguments, by ``memory_analysis``. (Its peak
    counts host memory and is not used.)"""
    sizes = [memory.get(f"{prefix}{part}_size_in_bytes", 0) for part in ("argument", "temp", "output")]
    return sum(sizes) - memory.get(f"{prefix}alias_size_in_bytes", 0)
