"""XLA flags as a user writes them, turned into ``compiler_options`` of ``jax.stages.Lowered.compile``.

An unknown flag in the XLA_FLAGS variable kills the process; as a compiler option it is an ordinary error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hloinspect.errors import CompileError

Option = bool | int | float | str

_FLAG = re.compile(r"(?:--)?(?P<name>[a-z][a-z0-9_]*)(?:=(?P<value>.*))?", re.DOTALL)
_BOOLS = {"true": True, "false": False}


def compiler_options(flags: Iterable[str]) -> dict[str, Option]:
    """``--xla_foo=bar``, ``xla_foo=bar`` or ``--xla_foo`` (true), each as one option; the last of a name wins.

    true and false become bools. Everything else stays text, which XLA converts by the flag's own type.
    Raises CompileError where a flag is not of this form.
    """
    options: dict[str, Option] = {}
    for flag in flags:
        match = _FLAG.fullmatch(flag.strip())
        if match is None:
            raise CompileError(f"{flag!r} is not an XLA flag: write --xla_name=value, or --xla_name for true")
        value = match["value"]
        options[match["name"]] = True if value is None else _BOOLS.get(value.lower(), value)
    return options
