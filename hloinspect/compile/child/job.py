"""What the compiling child was asked for, and what it has learnt so far (child process only)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hloinspect.compile.child import configuration
from hloinspect.compile.child.policies import MadePolicy
from hloinspect.inputs import manifest as result


@dataclass
class Job:
    """The request, and what has been learnt so far."""

    request: dict[str, Any]
    say: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    jaxprs: dict[int, Any] = field(default_factory=dict)  # id of what a Lowered (pmap has its own) wraps -> jaxpr
    offload_names: list[dict[str, Any]] = field(default_factory=list)
    policy_names: dict[str, Any] = field(default_factory=dict)  # those that some policy offloads, and its line
    requested: dict[str, Any] = field(default_factory=dict)  # what the jaxpr asks of host memory
    settings: dict[str, Any] = field(default_factory=dict)  # what the configuration of a library says
    policies: list[dict[str, list[str]]] = field(default_factory=list)  # names of those that the step has made
    made: list[MadePolicy] = field(default_factory=list)  # the same, and whether they are in use
    tell: Callable[..., None] = lambda **message: None  # answers of a plan (compile/many.py)
    compile_notes: list[str] = field(default_factory=list)  # those of notes that came while compiling
    cuda: Path | None = None  # where NVIDIA's assembler is, for a GPU
    before: configuration.Before | None = None  # what was set before the step's code ran
    configuration: result.Configuration | None = None

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)
