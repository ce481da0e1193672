"""Checkpoint policies that are requested: made for a step that takes one, put in place of the names of a step's own.

Run in the child process, where jax is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hloinspect.compile.protocol import NamedPolicy, StepRequest
from hloinspect.inputs.manifest import OFFLOAD, SAVE

Policy = Callable[..., object]

Arguments = Mapping[str, Any]
"""The arguments of ``save_and_offload_only_these_names``, by name."""

NOT_TAKEN = (
    "has no parameter named policy, and makes no policy with jax.checkpoint_policies.save_and_offload_only_these_names "
    "whose names could be replaced"
)

_SAVED, _OFFLOADED = "names_which_can_be_saved", "names_which_can_be_offloaded"


@dataclass
class MadePolicy:
    """A policy that the step has made: the names that it offloads, and whether ``jax.checkpoint`` has called it."""

    offloaded: frozenset[str]
    called: bool = False

    def noting(self, policy: Policy) -> Policy:
        """Return the same policy, which notes here that it is called."""

        @functools.wraps(policy)
        def noted(*args: object, **kwargs: object) -> object:
            self.called = True
            return policy(*args, **kwargs)

        return noted


def names_in_use(made: Iterable[MadePolicy]) -> list[str]:
    """Return the names that the policies in use offload. One that is made and not used, such as the others of a table
    of policies, offloads nothing and is to offload nothing."""
    return sorted({name for each in made if each.called for name in each.offloaded})


def names_of_dead(made: Iterable[MadePolicy], offloaded: Collection[str]) -> list[str]:
    """Return the names of the policies in use of which not one value is offloaded. A policy that is made and not used
    is not dead, and what one policy offloads makes no other one alive that does not name it."""
    return sorted(
        {name for each in made if each.called and each.offloaded.isdisjoint(offloaded) for name in each.offloaded}
    )


def policy_of(policy: NamedPolicy) -> Policy:
    """Return the policy object for a step's argument ``policy``."""
    import jax

    policies: Any = jax.checkpoint_policies
    made: Policy
    if policy.everything:
        made = policies.everything_saveable
    elif policy.offloaded:
        made = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[*policy.saved],
            names_which_can_be_offloaded=[*policy.offloaded],
            offload_src="device",
            offload_dst="pinned_host",
        )
    else:
        made = policies.save_only_these_names(*policy.saved) if policy.saved else policies.nothing_saveable
    return made


def changed(names: Arguments, request: StepRequest) -> dict[str, Any]:
    """Return the arguments of ``save_and_offload_only_these_names`` as the request would have them.

    ``policy`` replaces the names (everything: what it offloads is kept on the device), ``outcomes`` moves some of them,
    and ``offloaded`` all that are offloaded.
    """
    policy = request.policy
    if policy is not None and not policy.everything:
        return {**names, _SAVED: [*policy.saved], _OFFLOADED: [*policy.offloaded]}
    rest = request.offloaded if policy is None else SAVE
    if rest == OFFLOAD and not request.outcomes:
        return dict(names)
    was = dict.fromkeys(names.get(_SAVED, ()), SAVE) | dict.fromkeys(names.get(_OFFLOADED, ()), rest)
    outcome = {**was, **request.outcomes}
    return {
        **names,
        _SAVED: [name for name, what in outcome.items() if what == SAVE],
        _OFFLOADED: [name for name, what in outcome.items() if what == OFFLOAD],
    }


def named_policy(names: Arguments) -> NamedPolicy:
    """Return the policy that these arguments of ``save_and_offload_only_these_names`` make."""
    return NamedPolicy(
        saved=tuple(map(str, names.get(_SAVED, ()))), offloaded=tuple(map(str, names.get(_OFFLOADED, ())))
    )
