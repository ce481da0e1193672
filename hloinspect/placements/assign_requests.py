"""Assignment of transfers to requested placements: as many as possible get one, by the strongest ties first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

STRONG = 20
"""Tie from which on a transfer beyond the requested number counts as one more of the same request."""


def assign_transfers(
    ties: Sequence[Mapping[int, int]], wanted: Sequence[int], supply: Sequence[int]
) -> list[list[int]]:
    """Return the transfers of each request.

    ``ties[request]`` has the strength of the tie of each transfer that may belong to the request. ``wanted[request]``
    is how often a step requests it. ``supply[transfer]`` is how often a step runs the transfer.

    No transfer belongs to two requests. As many requests as possible get one, by augmenting paths. The strongest ties
    come first, and a request that has a transfer by a strong tie keeps one. A request with fewer runs than wanted gets
    more transfers, up to that number, for instance where the first iteration of a loop is peeled. Each remaining
    transfer goes to the request with the strongest tie to it, if that is ``STRONG``.
    """
    matching = _Matching(ties, wanted, supply)
    for level in sorted({tie for each in ties for tie in each.values()}, reverse=True):
        matching.raise_to(level)
    found: list[list[int]] = [[] for _ in ties]
    for transfer, request in matching.owner.items():
        found[request].append(transfer)
    _assign_rest(found, ties, wanted, supply)
    return [sorted(each) for each in found]


class _Matching:
    """One transfer for each request, by augmenting paths."""

    def __init__(self, ties: Sequence[Mapping[int, int]], wanted: Sequence[int], supply: Sequence[int]) -> None:
        self.owner: dict[int, int] = {}
        self._assigned: set[int] = set()
        self._ties = ties
        self._order = [
            sorted(each, key=lambda t, request=request: (-ties[request][t], supply[t] != wanted[request], t))  # type: ignore[misc]
            for request, each in enumerate(ties)
        ]

    def raise_to(self, level: int) -> None:
        """Assign transfers to as many requests as possible by ties of at least this strength."""
        for request in range(len(self._ties)):
            if request not in self._assigned and self._augment(request, level):
                self._assigned.add(request)

    def _fitting(self, request: int, level: int) -> Iterator[int]:
        return (transfer for transfer in self._order[request] if self._ties[request][transfer] >= level)

    def _augment(self, request: int, level: int) -> bool:
        """Find a transfer for a request, and move others if necessary. Return whether there is one.

        A path is a stack and not a recursion, since a step of many layers has long ones.
        """
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


def _assign_rest(
    found: list[list[int]], ties: Sequence[Mapping[int, int]], wanted: Sequence[int], supply: Sequence[int]
) -> None:
    """Assign the remaining transfers.

    Each goes to a request with fewer runs than wanted, if that stays within its number, or to one with a strong tie.
    """
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
