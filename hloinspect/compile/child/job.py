"""What the compiling child has to do, and what it has learnt so far (child process only)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from hloinspect.compile.child import configuration
from hloinspect.compile.child.jax_types import Jaxpr, Lowered
from hloinspect.compile.child.policies import MadePolicy
from hloinspect.compile.flags import Option
from hloinspect.compile.protocol import Compilation, Message, NamedPolicy, Progress
from hloinspect.inputs import manifest
from hloinspect.placements.flow import Place


@dataclass
class Job:
    """A compilation under way. ``compilation`` is what was requested, and with what: it is never changed, but another
    one takes its place when the step's own code turns out to have options, or XLA refuses a flag."""

    compilation: Compilation
    send: Callable[[Message], None] = lambda message: None
    seconds: dict[manifest.Phase, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    # By the id of what a Lowered wraps (that of pmap is no jax.stages.Lowered).
    jaxprs: dict[int, tuple[Jaxpr, Lowered]] = field(default_factory=dict)
    offload_names: tuple[manifest.OffloadName, ...] = ()
    policy_names: dict[str, Place | None] = field(default_factory=dict)  # names that some policy offloads, its line
    requested: dict[str, object] = field(default_factory=dict)  # what the jaxpr requests of host memory
    # What the configuration of a library says.
    settings: manifest.MaxTextSettings = field(default_factory=manifest.MaxTextSettings)
    policies: list[NamedPolicy] = field(default_factory=list)  # those that the step has made of names
    made: list[MadePolicy] = field(default_factory=list)  # the same, and whether they are in use
    compile_notes: tuple[str, ...] = ()  # those of notes that came while compiling
    cuda: Path | None = None  # where NVIDIA's assembler is, for a GPU
    before: configuration.Before | None = None  # what was set before the step's code ran
    configuration: manifest.Configuration | None = None
    production: manifest.ProductionUse = field(default_factory=manifest.ProductionUse)

    def say(self, text: str) -> None:
        """Send a short text for the user."""
        self.send(Progress(text=text))

    def note(self, text: str) -> None:
        """Add a note for the manifest, once."""
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def timed(self, name: manifest.Phase) -> Iterator[None]:
        """Note how long the body takes."""
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)

    def use_options(self, options: Mapping[str, Option]) -> None:
        """Compile with these options instead."""
        self.compilation = replace(self.compilation, compiler_options=dict(options))
