"""Types of options that are numbers, with the bounds of what makes sense: an absurd one is refused where it is read."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from hloinspect.hardware.layout import TOPOLOGY_FORM
from hloinspect.options import MOST_DEVICES


class Number(click.FloatRange):
    """A finite number from ``least`` to ``most``."""

    def __init__(self, least: float, most: float) -> None:
        super().__init__(least, most)
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises BadParameter."""
        number = float(super().convert(value, param, ctx))
        if number != number:  # not a number, which is in no range and out of none
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class TopologyName(click.types.StringParamType):
    """Sizes with an x between them, with or without the name of a chip."""

    name = "topology"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text. Raises BadParameter."""
        if not re.fullmatch(TOPOLOGY_FORM, str(value)):
            self.fail(f"{value!r} is no topology: write e.g. 2x16x4 for GPUs, v6e:4x4 for TPUs", param, ctx)
        return str(value)


DEVICES: Final = click.IntRange(1, MOST_DEVICES)
JOBS: Final = click.IntRange(1, 10_000)
SECONDS: Final = Number(1e-3, 1e7)
TOKENS: Final = Number(1e-6, 1e15)
TOPOLOGY: Final = TopologyName()
