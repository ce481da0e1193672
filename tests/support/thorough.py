"""How many examples a property is tried on: fewer in each run, many in ``dev.py test --thorough``."""

from __future__ import annotations

import os

VARIABLE = "HLOINSPECT_THOROUGH"


def is_thorough() -> bool:
    """Return whether this is the thorough run, that dev.py marks with a variable of the environment."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def examples(default: int, thorough: int) -> int:
    """Return the number of examples of this run."""
    return thorough if is_thorough() else default
