"""A check of the calls in a module, so that readers may follow them without a check for cycles or endless depth."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from hloinspect.errors import HloParseError

MAX_CALL_DEPTH = 200
"""Deepest nesting of calls. Real modules nest about ten deep, and a reader that recurses over calls needs a limit."""


def check_calls(callees: Mapping[str, Collection[str]]) -> None:
    """Raise HloParseError if a computation calls itself, directly or through others, or for too deeply nested calls.

    Calls may be nested MAX_CALL_DEPTH deep. Names that are not keys of ``callees`` call nothing.
    """
    depths: dict[str, int] = {}  # 0 while the calls of a computation are being followed
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
