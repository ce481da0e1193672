"""Gives transfers to the asks that they answer: as many asks as possible, by the strongest ties first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

STRONG = 20
"""A tie from which on a transfer beyond what was asked for is taken for more of the same."""


def assign_transfers(
    ties: Sequence[Mapping[int, int]], wanted: Sequence[int], supply: Sequence[int]
) -> list[list[int]]:
    """The transfers of each ask. ``ties[ask]`` has how strongly each transfer that may answer it is tied to it,
    ``wanted[ask]`` how often it is asked for in a step, and ``supply[transfer]`` how often that runs.

    No transfer answers two asks. As many asks are answered as can be (augmenting paths, the strongest ties first, so
    that what a strong tie answers stays answered). An ask that is answered less often than it asks gets more transfers,
    up to as often, as of a loop whose first turn stands in front of it; and what is left of the transfers goes to the
    ask that it is tied to the most, if that tie is ``STRONG``.
    """
    matching = _Matching(ties, wanted, supply)
    for level in sorted({tie for each in ties for tie in each.values()}, reverse=True):
        matching.raise_to(level)
    found: list[list[int]] = [[] for _ in ties]
    for transfer, request in matching.owner.items():
        found[request].append(transfer)
    _hand_out(found, ties, wanted, supply)
    return [sorted(each) for each in found]


class _Matching:
    """One transfer for each ask, by augmenting paths."""

    def __init__(self, ties: Sequence[Mapping[int, int]], wanted: Sequence[int], supply: Sequence[int]) -> None:
        self.owner: dict[int, int] = {}
        self._answered: set[int] = set()
        self._ties = ties
        self._order = [
            sorted(each, key=lambda t, request=request: (-ties[request][t], supply[t] != wanted[request], t))  # type: ignore[misc]
            for request, each in enumerate(ties)
        ]

    def raise_to(self, level: int) -> None:
        """Answer as many asks as ties of at least this strength can."""
        for request in range(len(self._ties)):
            if request not in self._answered and self._augment(request, level):
                self._answered.add(request)

    def _fitting(self, request: int, level: int) -> Iterator[int]:
        return (transfer for transfer in self._order[request] if self._ties[request][transfer] >= level)

    def _augment(self, request: int, level: int) -> bool:
        """Find a transfer for an ask, moving others if need be. A path is kept as a stack, since a step of many layers
        has long ones."""
        free = next((transfer for transfer in self._fitting(request, level) if transfer not in self.owner), None)
        if free is not None:
            self.owner[free] = request
            return True
        seen: set[int] = set()
        path = [(request, self._fitting(request, level))]
        taken: list[int] = []
        while path:
            transfer = next((t for t in path[-1][1] if t not in seen), None)
            if transfer is None:
                path.pop()
                if taken:
                    taken.pop()
                continue
            seen.add(transfer)
            taken.append(transfer)
            if transfer not in self.owner:
                for (one, _), moved in zip(path, taken, strict=True):
                    self.owner[moved] = one
                return True
            other = self.owner[transfer]
            path.append((other, self._fitting(other, level)))
        return False


def _hand_out(
    found: list[list[int]], ties: Sequence[Mapping[int, int]], wanted: Sequence[int], supply: Sequence[int]
) -> None:
    """Gives what is left to asks that are answered less often than they ask, as long as it is not more than that; and
    then to those that it is strongly tied to."""
    left = set(range(len(supply))) - {transfer for each in found for transfer in each}
    served = [sum(supply[transfer] for transfer in each) for each in found]
    by_transfer: dict[int, list[int]] = {}
    for request, each in enumerate(ties):
        for transfer in left.intersection(each):
            by_transfer.setdefault(transfer, []).append(request)
    for transfer, requests in sorted(by_transfer.items()):
        fitting = [
            request
            for request in requests
            if ties[request][transfer] >= STRONG or served[request] + supply[transfer] <= wanted[request]
        ]
        if fitting:
            request = max(
                fitting, key=lambda one: (wanted[one] > served[one], ties[one][transfer], bool(found[one]), -one)
            )
            found[request].append(transfer)
            served[request] += supply[transfer]
