"""Checkpoint policies that a plan asks for: made for a step that takes one, put in place of the names of a step's own.

A policy in a request is ``{"saved": [names], "offloaded": [names], "everything": bool}``; what is in neither list is
recomputed. ``fates`` maps single names to ``offload``, ``save`` or ``remat`` and leaves the rest of a step's own policy
alone. Run in the child process, where jax is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hloinspect.inputs.manifest import OFFLOAD, SAVE

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

    def noting(self, policy: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same policy, which notes here that it is called."""

        @functools.wraps(policy)
        def noted(*args: Any, **kwargs: Any) -> Any:
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


def policy_of(wanted: Mapping[str, Any]) -> Any:
    """The policy object for a step's argument ``policy``."""
    import jax

    policies = jax.checkpoint_policies
    if wanted.get("everything"):
        return policies.everything_saveable
    if wanted["offloaded"]:
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[*wanted["saved"]],
            names_which_can_be_offloaded=[*wanted["offloaded"]],
            offload_src="device",
            offload_dst="pinned_host",
        )
    return policies.save_only_these_names(*wanted["saved"]) if wanted["saved"] else policies.nothing_saveable


def changed(names: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``save_and_offload_only_these_names`` as the request would have them: ``policy`` replaces the
    names (everything: what it offloads is kept on the device), ``fates`` moves some of them, and ``offloaded``
    (offload, save or remat) all that are offloaded."""
    policy = request.get("policy")
    if policy is not None and not policy.get("everything"):
        return {**names, _SAVED: [*policy["saved"]], _OFFLOADED: [*policy["offloaded"]]}
    outcomes: Mapping[str, str] = request.get("outcomes", {})
    rest = request.get("offloaded", OFFLOAD) if policy is None else SAVE
    if rest == OFFLOAD and not outcomes:
        return names
    was = dict.fromkeys(names.get(_SAVED, ()), SAVE) | dict.fromkeys(names.get(_OFFLOADED, ()), rest)
    outcome = {**was, **outcomes}
    return {
        **names,
        _SAVED: [name for name, what in outcome.items() if what == SAVE],
        _OFFLOADED: [name for name, what in outcome.items() if what == OFFLOAD],
    }


def described(names: Mapping[str, Any]) -> dict[str, list[str]]:
    """The arguments of ``save_and_offload_only_these_names`` as a policy of a request."""
    return {"saved": [*map(str, names.get(_SAVED, ()))], "offloaded": [*map(str, names.get(_OFFLOADED, ()))]}
