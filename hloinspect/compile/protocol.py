"""What the parent and the child of a compilation say to each other: one line of JSON for each request and message.

The parent sends one request, ``CompileOne`` or ``CompileMany``, and reads messages until ``Done`` or ``Failed``, or
until the child ends. The field ``kind`` of a line says which type it is. No object here is ever changed: what the child
learns it keeps in its ``Job``.
"""

from __future__ import annotations

import json
from typing import IO

import msgspec

from hloinspect.compile.flags import Option
from hloinspect.inputs.manifest import OFFLOAD
from hloinspect.kinds import Platform, Tensors

Argument = bool | int | float | str | None
"""A keyword argument of a step."""


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A request or a message: a line of its own."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request or of a message."""


# --- requests -------------------------------------------------------------------------------------


class NamedPolicy(_Record, frozen=True, kw_only=True):
    """A checkpoint policy by names: values of names in neither tuple are recomputed. ``everything``: all that autodiff
    would keep is kept on the device."""

    saved: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()
    everything: bool = False


class StepRequest(_Record, frozen=True, kw_only=True):
    """The step to compile, by its name, with its keyword ``arguments``; or MaxText's, by the words of its command line.

    ``policy`` takes the place of the step's own policy. ``outcomes`` says of single names what becomes of their values
    (offload, save or remat), and ``offloaded`` of all others that the step's own policies offload.
    """

    step: str
    arguments: dict[str, Argument] = {}
    maxtext: tuple[str, ...] | None = None
    policy: NamedPolicy | None = None
    outcomes: dict[str, Tensors] = {}
    offloaded: Tensors = OFFLOAD


class AutotuneResults(_Record, frozen=True, kw_only=True):
    """A file of autotuning results: ``path`` as the user gave it, ``file`` as the child finds it. ``message`` is
    LEGACY or CURRENT (compile/production.py)."""

    path: str
    file: str
    sha256: str
    text: bool
    message: str
    devices: tuple[str, ...] = ()
    dnn_version: str | None = None


class Profile(_Record, frozen=True, kw_only=True):
    """A PGLE profile, or a directory of profiles."""

    path: str
    file: str
    sha256: str
    text: bool
    directory: bool


class ProductionRun(_Record, frozen=True, kw_only=True):
    """What the production run had: its flags, and (name, reason) of those that are left out; its files."""

    flags_from: str | None = None
    flags: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    autotune_results: AutotuneResults | None = None
    pgle: Profile | None = None


class Compilation(_Record, frozen=True, kw_only=True):
    """What to compile, for which target, and with which flags.

    ``xla_flags`` are texts, as they are shown; ``compiler_options`` are what XLA gets. ``outside`` has the names of
    those that come from the environment. ``notes`` begin the notes of the manifest.
    """

    step: StepRequest
    target: str
    platform: Platform
    target_config: str | None
    devices: int
    topology: str
    xla_flags: tuple[str, ...] = ()
    compiler_options: dict[str, Option] = {}
    outside: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cache: str | None = None
    production: ProductionRun | None = None


class FlagSet(_Record, frozen=True, kw_only=True):
    """One set of flags for a lowered step, and the directory for what compiling with it writes. ``compiler_options``
    are added to those of the compilation."""

    xla_flags: tuple[str, ...]
    compiler_options: dict[str, Option]
    out: str


class CompileOne(_Line, frozen=True, kw_only=True, tag="compile_one"):
    """A request to compile once, into the directory ``out``."""

    compilation: Compilation
    out: str


class CompileMany(_Line, frozen=True, kw_only=True, tag="compile_many"):
    """A request to lower a step once and to compile it under each set of flags."""

    compilation: Compilation
    flag_sets: tuple[FlagSet, ...]


Request = CompileOne | CompileMany


# --- messages -------------------------------------------------------------------------------------


class Progress(_Line, frozen=True, kw_only=True, tag="progress"):
    """A short text for the user: what the child is doing."""

    text: str


class Lowered(_Line, frozen=True, kw_only=True, tag="lowered"):
    """The step is lowered: its checkpoint names, and the policies that it has made of names."""

    names: tuple[str, ...]
    policies: tuple[NamedPolicy, ...]


class Started(_Line, frozen=True, kw_only=True, tag="started"):
    """The flag set of this number (from 0) is being compiled."""

    number: int


class Compiled(_Line, frozen=True, kw_only=True, tag="compiled"):
    """The flag set of this number is compiled, and its files are written."""

    number: int


class Refused(_Line, frozen=True, kw_only=True, tag="refused"):
    """The flag set of this number cannot be compiled: one line says why. The others are not affected."""

    number: int
    error: str


class Done(_Line, frozen=True, kw_only=True, tag="done"):
    """The last message: all that was requested is answered."""


class Failed(_Line, frozen=True, kw_only=True, tag="failed"):
    """The last message: nothing more can be compiled. ``error`` is one line, ``detail`` the end of the traceback."""

    error: str
    detail: str = ""


Message = Progress | Lowered | Started | Compiled | Refused | Done | Failed


# --- lines ----------------------------------------------------------------------------------------


def send(line: Request | Message, stream: IO[str]) -> None:
    """Write one line. Raises BrokenPipeError where the reader is gone.

    The text is ASCII: ``json`` escapes what UTF-8 cannot hold, such as the bytes of a path that is no text.
    """
    stream.write(json.dumps(msgspec.to_builtins(line)) + "\n")
    stream.flush()


def read_request(line: str) -> Request:
    """Return the request in a line. Raises ValueError for anything else."""
    request: Request = msgspec.convert(json.loads(line), Request)
    return request


def read_message(line: str) -> Message | None:
    """Return the message in a line. None for anything else: what Python or a library prints before the child has taken
    its standard output over, and a line that is cut off because the child has died."""
    try:
        message: Message = msgspec.convert(json.loads(line), Message)
    except (ValueError, RecursionError):
        return None
    return message
