"""hloinspect: do host offload transfers overlap with compute? Answered before a run, without an accelerator.

The public verbs are imported when they are first used, so that ``import hloinspect`` loads neither jax nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloinspect.api import inspect as inspect
    from hloinspect.compile import compile_step as compile_step
    from hloinspect.errors import BudgetExceeded as BudgetExceeded
    from hloinspect.errors import NotEnoughEvidence as NotEnoughEvidence
    from hloinspect.gate.verb import check as check
    from hloinspect.given import Production as Production
    from hloinspect.hlo import load_module as load_module
    from hloinspect.report.html import html_page as html_page
    from hloinspect.tracing import trace as trace

__version__ = "0.1.0"

_HOMES = {
    "BudgetExceeded": "hloinspect.errors",
    "NotEnoughEvidence": "hloinspect.errors",
    "Production": "hloinspect.given",
    "check": "hloinspect.gate.verb",
    "inspect": "hloinspect.api",
    "compile_step": "hloinspect.compile",
    "load_module": "hloinspect.hlo",
    "html_page": "hloinspect.report.html",
    "trace": "hloinspect.tracing",
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
