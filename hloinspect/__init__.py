"""hloinspect: do host offload transfers overlap with compute? Answered before a run, without an accelerator.

The public verbs are imported when they are first used, so that ``import hloinspect`` loads neither jax nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloinspect._version import __version__

if TYPE_CHECKING:
    from hloinspect.analyze.inspect import inspect as inspect
    from hloinspect.analyze.trace import trace as trace
    from hloinspect.compile.launch import compile_step as compile_step
    from hloinspect.gate.errors import BudgetExceeded as BudgetExceeded
    from hloinspect.gate.errors import NotEnoughEvidence as NotEnoughEvidence
    from hloinspect.gate.verb import check as check
    from hloinspect.hlo import load_module as load_module
    from hloinspect.options import Production as Production
    from hloinspect.render.page import html_page as html_page

_HOMES = {
    "BudgetExceeded": "hloinspect.gate.errors",
    "NotEnoughEvidence": "hloinspect.gate.errors",
    "Production": "hloinspect.options",
    "check": "hloinspect.gate.verb",
    "inspect": "hloinspect.analyze.inspect",
    "compile_step": "hloinspect.compile.launch",
    "load_module": "hloinspect.hlo",
    "html_page": "hloinspect.render.page",
    "trace": "hloinspect.analyze.trace",
}

__all__ = [
    "BudgetExceeded",
    "NotEnoughEvidence",
    "Production",
    "__version__",
    "check",
    "compile_step",
    "html_page",
    "inspect",
    "load_module",
    "trace",
]


def __getattr__(name: str) -> object:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
