"""Who calls whom in a module: what reads it may follow calls without looking out for cycles or endless depth."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from hloinspect.errors import HloParseError

MAX_CALL_DEPTH = 200
"""Real modules nest about ten deep; a reader that recurses over calls must have an end."""


def check_calls(callees: Mapping[str, Collection[str]]) -> None:
    """Raises HloParseError if a computation calls itself, directly or through others, or if calls nest deeper than
    MAX_CALL_DEPTH. Names that are no keys of ``callees`` call nothing."""
    depths: dict[str, int] = {}  # 0 while a computation is being walked
    for start in callees:
        stack: list[tuple[str, Iterator[str]]] = []
        todo = start
        while todo or stack:
            if todo:
                depths[todo] = 0
                stack.append((todo, iter(callees[todo])))
                todo = ""
            name, rest = stack[-1]
            for callee in rest:
                if callee not in callees:
                    continue
                if (depth := depths.get(callee)) is None:
                    todo = callee
                    break
                if depth == 0:
                    raise HloParseError(f"computation {callee} calls itself")
            if not todo:
                stack.pop()
                depths[name] = 1 + max((depths.get(callee, 0) for callee in callees[name]), default=0)
                if depths[name] > MAX_CALL_DEPTH:
                    raise HloParseError(f"calls are nested deeper than {MAX_CALL_DEPTH}")
