"""What parent and child of a compilation say to each other: one line each, the same again when it is read."""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.compile import process, protocol
from hloinspect.compile.protocol import (
    AutotuneResults,
    Compilation,
    CompileMany,
    CompileOne,
    FlagSet,
    Message,
    NamedPolicy,
    ProductionRun,
    Profile,
    Request,
    StepRequest,
    read_message,
    read_request,
    send,
)
from hloinspect.kinds import Platform, Tensors, words_of

TEXT = st.text(st.characters(), max_size=8)  # with surrogates: what is no text in a path becomes some
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
VALUE = st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
OPTIONS = st.dictionaries(TEXT, VALUE, max_size=3)
OUTCOME = st.sampled_from(words_of(Tensors))
POLICY = st.builds(NamedPolicy, saved=TEXTS, offloaded=TEXTS, everything=st.booleans())
STEP = st.builds(
    StepRequest,
    step=TEXT,
    arguments=st.dictionaries(TEXT, VALUE | st.none(), max_size=3),
    maxtext=st.none() | TEXTS,
    policy=st.none() | POLICY,
    outcomes=st.dictionaries(TEXT, OUTCOME, max_size=2),
    offloaded=OUTCOME,
)
RUN = st.builds(
    ProductionRun,
    flags_from=st.none() | TEXT,
    flags=TEXTS,
    left_out=st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
    autotune_results=st.none()
    | st.builds(AutotuneResults, path=TEXT, file=TEXT, sha256=TEXT, text=st.booleans(), message=TEXT, devices=TEXTS),
    pgle=st.none() | st.builds(Profile, path=TEXT, file=TEXT, sha256=TEXT, text=st.booleans(), directory=st.booleans()),
)
COMPILATION = st.builds(
    Compilation,
    step=STEP,
    target=TEXT,
    platform=st.sampled_from(words_of(Platform)),
    target_config=st.none() | TEXT,
    devices=st.integers(),
    topology=TEXT,
    xla_flags=TEXTS,
    compiler_options=OPTIONS,
    outside=TEXTS,
    notes=TEXTS,
    cache=st.none() | TEXT,
    production=st.none() | RUN,
)
FLAG_SETS = st.lists(st.builds(FlagSet, xla_flags=TEXTS, compiler_options=OPTIONS, out=TEXT), max_size=2).map(tuple)
REQUEST = st.builds(CompileOne, compilation=COMPILATION, out=TEXT) | st.builds(
    CompileMany, compilation=COMPILATION, flag_sets=FLAG_SETS
)
NUMBER = st.integers(0, 99)
MESSAGE = st.one_of(
    st.builds(protocol.Progress, text=TEXT),
    st.builds(protocol.Lowered, names=TEXTS, policies=st.lists(POLICY, max_size=2).map(tuple)),
    st.builds(protocol.Started, number=NUMBER),
    st.builds(protocol.Compiled, number=NUMBER),
    st.builds(protocol.Refused, number=NUMBER, error=TEXT),
    st.just(protocol.Done()),
    st.builds(protocol.Failed, error=TEXT, detail=TEXT),
)
SMALLEST = CompileOne(
    compilation=Compilation(
        step=StepRequest(step="a.py:f"), target="h100", platform="gpu", target_config="", devices=1, topology="1x1x1"
    ),
    out="out",
)


def line_of(sent: Request | Message) -> str:
    stream = io.StringIO()
    send(sent, stream)
    return stream.getvalue()


@given(REQUEST)
def test_a_request_is_one_line_and_the_same_when_it_is_read(request: Request) -> None:
    line = line_of(request)
    assert (line.count("\n"), line[-1], line.isascii()) == (1, "\n", True)
    assert read_request(line) == request


@given(MESSAGE)
def test_a_message_is_one_line_and_the_same_when_it_is_read(message: Message) -> None:
    line = line_of(message)
    assert (line.count("\n"), line[-1], line.isascii()) == (1, "\n", True)
    assert read_message(line) == message


@given(MESSAGE, st.data())
def test_a_line_that_is_cut_off_is_no_message(message: Message, data: st.DataObject) -> None:
    line = line_of(message).rstrip("\n")
    assert read_message(line[: data.draw(st.integers(0, len(line) - 1))]) is None


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: a library prints this\n",
        "{'a': 'dict that somebody prints'}\n",
        '{"kind": "unheard_of"}\n',
        '{"progress": "without a kind"}\n',
        '{"kind": "started", "number": "one"}\n',
        '{"kind": "failed"}\n',
        "[1, 2]\n",
        "3\n",
        "\n",
        "{" * 2000 + "\n",
        "[" * 200_000 + "\n",
        '{"kind": "\\ud800"}\n',
        '{"kind": "started", "number": "\\ud800"}\n',
        '{"kind": "started", "number": 1' + "0" * 5000 + "}\n",
    ],
)
def test_what_else_is_printed_is_no_message(line: str) -> None:
    assert read_message(line) is None


def test_nothing_of_a_request_can_be_changed() -> None:
    with pytest.raises(AttributeError):
        SMALLEST.compilation.devices = 2  # type: ignore[misc]


# --- a conversation with a process that is none of ours -----------------------------------------------


@pytest.fixture
def log() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        yield file


def messages_of(code: str, log: IO[bytes], timeout_s: float = 60.0, stop: threading.Event | None = None):  # type: ignore[no-untyped-def]
    child = process.start_python(["-c", code], dict(os.environ), log)
    try:
        found = list(process.conversation(child, SMALLEST, timeout_s, stop))
        child.wait(timeout=30)
    finally:
        process.end_child(child)
    return found, child.returncode


def test_what_a_child_prints_between_its_messages_is_passed_over(log: IO[bytes]) -> None:
    progress, done = line_of(protocol.Progress(text="a")), line_of(protocol.Done())
    code = f"print('hello'); print({progress!r}); print('{{}}'); print({done!r})"
    assert messages_of(code, log) == ([protocol.Progress(text="a"), protocol.Done()], 0)


def test_bytes_that_are_no_text_between_messages_are_passed_over(log: IO[bytes]) -> None:
    printed = b"\xff\xfe caf\xe9\n" + line_of(protocol.Done()).encode()
    code = f"import os; os.write(1, {printed!r})"
    assert messages_of(code, log, timeout_s=10.0) == ([protocol.Done()], 0)


def test_a_child_that_dies_within_a_line_is_one_that_died(log: IO[bytes]) -> None:
    cut = line_of(protocol.Failed(error="never whole"))[:25]
    code = f"import os, signal; os.write(1, {cut.encode()!r}); os.kill(os.getpid(), signal.SIGKILL)"
    found, returncode = messages_of(code, log)
    assert found == []
    assert process.silent_end(returncode, process.tail(log)) == (
        "the compiling process was killed by SIGKILL (out of memory?)"
    )


def test_a_child_that_reads_nothing_and_ends_gives_the_last_words_of_its_log(log: IO[bytes]) -> None:
    found, returncode = messages_of("import sys; print('ValueError: of the child', file=sys.stderr); sys.exit(3)", log)
    assert found == []
    assert process.silent_end(returncode, process.tail(log)) == (
        "the compiling process ended with code 3 and no result: ValueError: of the child"
    )


def test_a_child_that_says_nothing_for_too_long_is_given_up(log: IO[bytes]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        messages_of("import time; time.sleep(60)", log, timeout_s=0.5)


def test_a_conversation_ends_when_it_is_stopped(log: IO[bytes]) -> None:
    stop = threading.Event()
    stop.set()
    assert messages_of("input()", log, stop=stop)[0] == []
