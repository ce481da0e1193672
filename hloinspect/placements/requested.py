"""Counts of the placements that a program requests before it is compiled, from its StableHLO.

StableHLO is MLIR. Only the placements are needed here, so plain text searches count them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TO_HOST = re.compile(r'_xla_buffer_placement = "(?:un)?pinned_host"')
_TO_DEVICE = re.compile(r'_xla_buffer_placement = "device"')
HOST_KIND = re.compile(r'mhlo\.memory_kind = "(?:un)?pinned_host"')


@dataclass(frozen=True, slots=True)
class Requested:
    """Numbers of the placements that a program requests.

    ``to_host`` and ``to_device`` count the values that the program places (``annotate_device_placement``; one in a
    loop's body counts once). ``arguments`` and ``results`` count those of the step that are requested in host memory.
    ``unmatched`` are names that a policy in use offloads and no offloaded value has (from `hloinspect compile`).
    ``dead`` are those of policies that offload no value at all. It is None where that is not known.
    """

    to_host: int
    to_device: int
    arguments: int
    results: int
    unmatched: tuple[str, ...] = ()
    dead: tuple[str, ...] | None = None

    @property
    def entry_values(self) -> dict[str, int]:
        """Return ``arguments`` and ``results`` by kind."""
        return {"argument": self.arguments, "result": self.results}

    @property
    def anything(self) -> bool:
        """Return whether anything is requested in host memory."""
        return bool(self.to_host or self.arguments or self.results)


def count_requested(stablehlo: str) -> Requested:
    """Return the number of placements in the text of a StableHLO module."""
    start = stablehlo.find("func.func public @main")
    line = stablehlo[start : stablehlo.find("\n", start)] if start >= 0 else ""
    arguments, _, results = line.partition(") -> (")
    return Requested(
        to_host=len(TO_HOST.findall(stablehlo)),
        to_device=len(_TO_DEVICE.findall(stablehlo)),
        arguments=len(HOST_KIND.findall(arguments)),
        results=len(HOST_KIND.findall(results)),
    )
