"""From the request to the step's ``Lowered``, and what is only known until then (child process only)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from hloinspect.compile.child import configuration, policies, step_flags
from hloinspect.compile.child.jax_types import Device, Lowered, Traced
from hloinspect.compile.child.job import Job
from hloinspect.compile.child.message import ChildError, first_line, one_line
from hloinspect.compile.child.policies import MadePolicy
from hloinspect.compile.flags import Option
from hloinspect.inputs import manifest
from hloinspect.units import bytes_text


def keep_jaxprs(job: Job) -> None:
    """Note the jaxpr of each ``Lowered`` when it is made: it does not hold it, and the checkpoint names are only
    there."""
    import jax.stages

    lower: Callable[..., Lowered] = jax.stages.Traced.lower

    def lower_and_keep(self: Traced, *args: object, **kwargs: object) -> Lowered:
        lowered = lower(self, *args, **kwargs)
        job.jaxprs[id(lowered._lowering)] = (self.jaxpr, lowered)  # which keeps the id from being used again
        return lowered

    jax.stages.Traced.lower = lower_and_keep  # type: ignore[method-assign]


def keep_policy_names(job: Job) -> None:
    """Note what policies are made of: a policy is a closure, and a name in it that no value has is nowhere else."""
    import jax

    from hloinspect.compile.child import audit

    make = jax.checkpoint_policies.save_and_offload_only_these_names

    def make_and_keep(*args: object, **kwargs: object) -> policies.Policy:
        kwargs = policies.changed(kwargs, job.compilation.step)
        policy = policies.named_policy(kwargs)
        job.policies.append(policy)
        for name in policy.offloaded:
            job.policy_names.setdefault(name, audit.call_site())
        job.made.append(MadePolicy(frozenset(policy.offloaded)))
        return job.made[-1].noting(make(*args, **kwargs))

    jax.checkpoint_policies.save_and_offload_only_these_names = make_and_keep


def lowered_step(job: Job, devices: Sequence[Device]) -> Lowered:
    """Return the ``Lowered`` of the requested step. Raises ChildError, and whatever the step's code raises."""
    request = job.compilation.step
    if request.maxtext is not None:
        return _lowered_maxtext(job, request.maxtext, devices)
    from hloinspect.compile.child import steps

    steps.remember_lowered()
    arguments: dict[str, object] = dict(request.arguments)
    try:
        function = steps.load_step(request.step, arguments)
        takes_policy = steps.takes(function, "policy")
        if request.policy is not None and takes_policy:
            arguments["policy"] = policies.policy_of(request.policy)
        lowered, options = steps.call_step(request.step, function, arguments)
        _use_own_options(job, options)
    except steps.StepError as error:
        raise ChildError(str(error)) from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ChildError(_too_large_for_this_machine(error)) from None  # its words are known of the target's memory
    if not job.policies and (request.outcomes or (request.policy is not None and not takes_policy)):
        raise ChildError(f"{request.step} {policies.NOT_TAKEN}")
    if request.policy is not None and takes_policy:
        job.policies.clear()  # it was given its policy: others that it makes do not count
    return lowered


def _too_large_for_this_machine(error: Exception) -> str:
    """Return what to say of an array that the step's code makes before anything is compiled for the target."""
    place = one_line(error).rpartition(" (")[2]
    size = re.search(r"allocat\w+ (\d+) bytes", str(error))
    much = f" {bytes_text(int(size[1]))}" if size else ""
    return (
        f"the step's code makes an array of{much} on this machine, which has not the memory for it: eager operations "
        "without a sharding run here. Make it on the target (jax.jit(..., out_shardings=...), a sharding or "
        f"device=...), or make shapes only (jax.eval_shape) ({place}"
    )


def _use_own_options(job: Job, own: Mapping[str, Option]) -> None:
    """Compile with the options that the step's own code has compiled with; the user's flags win."""
    if own:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(own.items()))
        job.note(f"compiler options of the step's own compile(): {shown[:400]}")
        job.use_options({**own, **job.compilation.compiler_options})


def _lowered_maxtext(job: Job, words: Sequence[str], devices: Sequence[Device]) -> Lowered:
    from hloinspect.compile.child import maxtext

    try:
        step = maxtext.train_step(words, devices)
    except maxtext.MaxTextError as error:
        raise ChildError(str(error)) from error
    if not job.policies and (job.compilation.step.outcomes or job.compilation.step.policy is not None):
        raise ChildError(f"MaxText's configuration {policies.NOT_TAKEN}: give remat_policy=custom")
    job.settings = step.settings
    job.notes += step.notes
    job.use_options({**step.options, **job.compilation.compiler_options})  # the user's flags win
    return step.lowered


def note_what_differs(job: Job, lowered: Lowered) -> None:
    """Note what is compiled otherwise than a run would, and take over the flags that the step's code has set."""
    from hloinspect.compile.child import kernels

    platform = job.compilation.platform
    if platform == "tpu" and job.before and (late := configuration.set_too_late(job.before)):
        job.note(late)
    options, note = step_flags.take_over(platform)
    if note:
        given, outside = job.compilation.compiler_options, job.compilation.outside
        weaker = {name: value for name, value in given.items() if name in outside}  # those of the environment
        job.use_options({**weaker, **options, **{k: v for k, v in given.items() if k not in weaker}})
        job.note(note)
    if platform == "gpu" and kernels.has_callbacks(lowered):
        job.note(kernels.NOTE_CALLBACKS)


def find_offload_names(job: Job, lowered: Lowered) -> None:
    """Find the names of values in host memory, and what the step's jaxpr requests of it."""
    from hloinspect.compile.child import audit, names

    used = policies.names_in_use(job.made)
    try:
        jaxpr, _ = job.jaxprs[id(lowered._lowering)]
        job.offload_names = names.offload_names(jaxpr)
        requested = audit.requested_of(jaxpr, lowered, {name: job.policy_names[name] for name in used})
    except Exception as error:  # names are a help, not the result
        job.notes.append(
            f"what the step requests of host memory could not be read: {type(error).__name__}: {first_line(error)}"
        )
        return
    offloaded = {entry.name for entry in job.offload_names}
    job.requested = {**requested, "dead_policies": policies.names_of_dead(job.made, offloaded)}
    if unmatched := [name for name in used if name not in offloaded]:
        job.notes.append(f"{manifest.NOTE_POLICY_UNMATCHED}: {', '.join(unmatched)}")
