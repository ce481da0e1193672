"""What becomes of the named values of a step: kept on the device, offloaded, or computed again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from hloinspect.compile.protocol import NamedPolicy, StepRequest
from hloinspect.errors import UsageError
from hloinspect.inputs.manifest import OFFLOAD, REMAT, SAVE
from hloinspect.kinds import Tensors

OUTCOMES: tuple[Tensors, ...] = (OFFLOAD, REMAT, SAVE)
OWN = "own"
"""The policy of the step itself."""

_GRAMMAR = "write own, save, remat, offload:NAME+NAME, save:NAME+NAME, or both with / between: offload:hid/save:qkv"
_NAME = re.compile(r"[^\s,/+:=]+")


@dataclass(frozen=True, slots=True)
class Policy:
    """Checkpoint names by what becomes of their values; values in neither tuple are recomputed.

    ``everything``: all that autodiff would keep is kept on the device. ``is_own``: the step decides for itself, but for
    the names in ``outcomes``.
    """

    saved: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()
    everything: bool = False
    is_own: bool = False
    outcomes: tuple[tuple[str, Tensors], ...] = ()

    def of_step(self, request: StepRequest) -> StepRequest:
        """Return the request with this policy (compile/child/policies.py)."""
        if self.is_own:
            return structs.replace(request, outcomes=dict(self.outcomes))
        policy = NamedPolicy(saved=self.saved, offloaded=self.offloaded, everything=self.everything)
        return structs.replace(request, policy=policy)

    def outcome_of(self, name: str) -> Tensors:
        """Return offload, save or remat: what becomes of the values of this name."""
        return OFFLOAD if name in self.offloaded else SAVE if name in self.saved else REMAT

    def with_outcome(self, name: str, outcome: Tensors) -> Policy:
        """Return the same policy with another outcome for one name; other names keep theirs."""
        if self.is_own:
            return Policy(is_own=True, outcomes=(*(item for item in self.outcomes if item[0] != name), (name, outcome)))
        saved = tuple(other for other in self.saved if other != name) + ((name,) if outcome == SAVE else ())
        offloaded = tuple(other for other in self.offloaded if other != name) + ((name,) if outcome == OFFLOAD else ())
        return Policy(tuple(sorted(saved)), tuple(sorted(offloaded)))

    def code(self) -> str:
        """Return the policy as a line of JAX."""
        if self.is_own:
            changed = "".join(f", but {name}: {outcome}" for name, outcome in self.outcomes)
            return f"the step's own policy{changed}"
        if self.everything:
            return "jax.checkpoint_policies.everything_saveable"
        if self.offloaded:
            return (
                "jax.checkpoint_policies.save_and_offload_only_these_names("
                f"names_which_can_be_saved={[*self.saved]!r}, names_which_can_be_offloaded={[*self.offloaded]!r}, "
                'offload_src="device", offload_dst="pinned_host")'
            )
        if self.saved:
            return f"jax.checkpoint_policies.save_only_these_names({', '.join(map(repr, self.saved))})"
        return "jax.checkpoint_policies.nothing_saveable"

    def text(self) -> str:
        """Return the policy as it is written in ``--vary policy=``."""
        if self.is_own:
            return "/".join([OWN, *(f"{outcome}:{name}" for name, outcome in self.outcomes)])
        if self.everything:
            return SAVE
        parts = [(OFFLOAD, self.offloaded), (SAVE, self.saved)]
        return "/".join(f"{word}:{'+'.join(names)}" for word, names in parts if names) or REMAT


def parse_policy(text: str, others: Iterable[str] = ()) -> Policy:
    """Read ``remat``, ``offload:a+b``, ``save:c``, ``offload:a/save:c``, ``own``; ``save`` alone keeps the names that
    ``others`` (the other policies of the plan) name, or everything where they name none. Raises UsageError."""
    if text in (OWN, OFFLOAD):
        return Policy(is_own=True)
    if text == REMAT:
        return Policy()
    if text == SAVE:
        names = _named(others)
        return Policy(saved=names) if names else Policy(everything=True)
    found: dict[str, tuple[str, ...]] = {}
    for part in text.split("/"):
        word, colon, listed = part.partition(":")
        if word not in OUTCOMES or not colon or word in found or word == REMAT:
            raise UsageError(f"policy {text!r}: {_GRAMMAR}")
        found[word] = tuple(dict.fromkeys(listed.split("+")))
        if not all(_NAME.fullmatch(name) for name in found[word]):
            raise UsageError(f"policy {text!r}: {_GRAMMAR}")
    saved, offloaded = found.get(SAVE, ()), found.get(OFFLOAD, ())
    if twice := set(saved) & set(offloaded):
        raise UsageError(f"policy {text!r}: {min(twice)} is both saved and offloaded")
    return Policy(saved, offloaded)


def _named(policies: Iterable[str]) -> tuple[str, ...]:
    names = (name for text in policies for part in text.split("/") for name in part.partition(":")[2].split("+"))
    return tuple(dict.fromkeys(name for name in names if name))


def read_policies(texts: Iterable[str], named: Mapping[str, str]) -> dict[str, Policy]:
    """Return each policy by how it is written: a name of ``named`` (pyproject.toml) or the grammar of
    ``parse_policy``."""
    texts = tuple(texts)
    meant = {text: named.get(text, text) for text in texts}
    return {text: parse_policy(meant[text], (other for key, other in meant.items() if key != text)) for text in texts}
