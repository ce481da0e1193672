"""How far a module explains a profile: whether it has the instructions that the events name.

A module of another build has many of the names too, since XLA numbers instructions of a kind (``fusion.12``). Variants
of one MaxText model have up to 94 % of each other's names of kernels, so that almost all have to be there.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

TRUSTED_SHARE: Final = 0.99
"""The share of the names, and of the events, that a module has to have to be taken for the one that ran."""

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Explained:
    """The events that name an instruction, and those whose instruction is in the module.

    ``names`` counts different names. ``missing`` are those that are not in the module, the most frequent first, at most
    four. ``other_name`` is what the profile calls the program where the module has another name, else "".
    """

    events: int
    found: int
    names: int
    names_found: int
    missing: tuple[str, ...] = ()
    other_name: str = ""

    @property
    def is_trusted(self) -> bool:
        """Return whether the module may be taken for the one that ran."""
        enough = self.names_found >= TRUSTED_SHARE * self.names and self.found >= TRUSTED_SHARE * self.events
        return enough and not self.other_name

    @property
    def text(self) -> str:
        """Return the shares, and names that are missing, in a sentence."""
        other = f"the profile names the program {self.other_name}; " if self.other_name else ""
        share = f"{other}it has the instructions of {_percent(self.found, self.events)} of the events that name one"
        if not self.missing:
            return share
        return f"{share}, and {self.names_found:,} of {self.names:,} names (not {', '.join(self.missing)})"


def explained(
    names: Container[str], events: Mapping[str, int], module: str = "", program: str = ""
) -> Explained | None:
    """Return how far a module with instructions of these ``names`` explains ``events``: how many name each instruction.

    ``module`` is the module's name, and ``program`` what the profile calls the program; "" is not known. It is None
    where no event names an instruction. A ``ProgramJoin`` is such a container of names.
    """
    named = {name: count for name, count in events.items() if name and count > 0}
    if not named:
        return None
    missing = [name for name in named if name not in names]
    missing.sort(key=lambda name: (-named[name], name))
    return Explained(
        events=sum(named.values()),
        found=sum(named.values()) - sum(named[name] for name in missing),
        names=len(named),
        names_found=len(named) - len(missing),
        missing=tuple(missing[:_SHOWN]),
        other_name=program if module and program and module != program else "",
    )


def _percent(part: int, whole: int) -> str:
    """Return a share in percent; what is not all is never 100 %."""
    if part == whole:
        return "100 %"
    return f"{min(99.9, 100 * part / whole):.3g} %"
