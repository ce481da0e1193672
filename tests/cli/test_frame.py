"""The frame of the command line: quick to start, one line for every error, exit codes that mean one thing."""

from __future__ import annotations

import importlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import hloinspect as package
from hloinspect.cli import COMMANDS, main
from hloinspect.cli.console import emit, use_color, width
from hloinspect.errors import CompileError, HloInspectError
from tests.support.places import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after running ``code``."""
    script = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.splitlines()[-1].split())


# --- start-up


@pytest.mark.parametrize(
    "code",
    [
        "import hloinspect",
        "import hloinspect.cli",
        "from hloinspect.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from hloinspect.cli import main\ntry: main(['targets', 'gb200'])\nexcept SystemExit: pass",
    ],
)
def test_start_up_imports_neither_jax_nor_numpy_nor_protobuf(code: str):
    heavy = {"jax", "jaxlib", "numpy", "google.protobuf", "rich"}
    assert not heavy & loaded_by(code)


def test_help_imports_no_command():
    loaded = loaded_by("from hloinspect.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass")
    assert not {f"hloinspect.cli.{name}" for name in COMMANDS} & loaded
    assert "hloinspect.hardware" not in loaded


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_listed_command_exists_and_has_help_with_an_example(name: str):
    command = importlib.import_module(f"hloinspect.cli.{name}").command
    assert isinstance(command, click.Command)
    result = CliRunner().invoke(main, [name, "-h"])
    assert result.exit_code == 0
    assert f"hloinspect {name}" in result.output


def test_the_public_verbs_are_found_when_asked_for():
    assert package.load_module is importlib.import_module("hloinspect.hlo").load_module
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package)


def test_a_name_that_the_package_lacks_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


# --- help, version, wrong use


def test_help_lists_the_commands_and_examples_on_stdout(hloinspect_process: Run):
    for option in ("-h", "--help"):
        done = hloinspect_process(option)
        assert done.returncode == 0
        assert done.stderr == ""
        for name, line in COMMANDS.items():
            assert f"{name} " in done.stdout
            assert line in done.stdout
        assert "hloinspect inspect train.py:step --target gb200" in done.stdout


def test_nothing_asked_is_help_but_no_success(hloinspect_process: Run):
    done = hloinspect_process()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: hloinspect ")


def test_the_version_is_the_packages(hloinspect_process: Run):
    done = hloinspect_process("--version")
    assert (done.returncode, done.stdout) == (0, f"hloinspect {package.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "first", "second"),
    [
        (["inspct"], "unknown command 'inspct': did you mean inspect?", "try: hloinspect --help"),
        (
            ["zzz"],
            f"unknown command 'zzz': known are {', '.join(COMMANDS)}",
            "try: hloinspect --help",
        ),
        (["--nonsense"], "No such option", "try: hloinspect --help"),
        (["targets", "--nonsense"], "No such option", "try: hloinspect targets --help"),
        (["targets", "a100", "h100"], "Got unexpected extra argument", "try: hloinspect targets --help"),
        (["targets", "--format", "xml"], "Invalid value for '--format'", "try: hloinspect targets --help"),
    ],
)
def test_wrong_use_is_two_lines_and_exit_code_2(hloinspect: Run, arguments: list[str], first: str, second: str):
    done = hloinspect(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("hloinspect: error: ")
    assert first in lines[0]
    assert lines[1:] == [second]


def test_an_unknown_target_is_one_line_and_exit_code_2(hloinspect_process: Run):
    done = hloinspect_process("targets", "h1000")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hloinspect: error: unknown target 'h1000': did you mean h100?")
    assert done.stderr.count("\n") == 1


# --- how a command may end: a real command in the place of `targets`, with everything around it real


def ending(monkeypatch: pytest.MonkeyPatch, body: Callable[[], object], env: dict[str, str] | None = None) -> Result:
    command = click.Command("targets", callback=body)
    monkeypatch.setattr(importlib.import_module("hloinspect.cli.targets"), "command", command)
    return CliRunner().invoke(main, ["targets"], env=env)


def raising(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (HloInspectError("a.hlo: not HLO"), 2, "hloinspect: error: a.hlo: not HLO"),
        (CompileError("two\nlines", "detail"), 2, "hloinspect: error: two lines"),
        (click.ClickException("from click"), 2, "hloinspect: error: from click"),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "hloinspect: error: /x/y: Permission denied"),
        (
            ZeroDivisionError("oops"),
            2,
            "hloinspect: error: internal error: ZeroDivisionError: oops; "
            "run again with HLOINSPECT_TRACEBACK=1 for the traceback",
        ),
        (KeyboardInterrupt(), 130, "hloinspect: interrupted"),
        (click.Abort(), 130, "hloinspect: interrupted"),
    ],
)
def test_an_error_is_one_line_and_never_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
):
    result = ending(monkeypatch, raising(error))
    assert (result.exit_code, result.output) == (code, line + "\n")


def test_the_traceback_comes_when_asked_for(monkeypatch: pytest.MonkeyPatch):
    result = ending(monkeypatch, raising(ValueError("deep")), {"HLOINSPECT_TRACEBACK": "1"})
    assert result.exit_code == 2
    assert "Traceback (most recent call last):" in result.output
    assert result.output.endswith("hloinspect: error: internal error: ValueError: deep\n")


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_a_command_returns_its_exit_code(monkeypatch: pytest.MonkeyPatch, returned: int | None, code: int):
    assert ending(monkeypatch, lambda: returned).exit_code == code


def test_a_command_may_exit_through_its_context_or_the_interpreter(monkeypatch: pytest.MonkeyPatch):
    assert ending(monkeypatch, lambda: click.get_current_context().exit(3)).exit_code == 3
    assert ending(monkeypatch, raising(SystemExit(1))).exit_code == 1


def test_without_standalone_mode_errors_reach_the_caller(monkeypatch: pytest.MonkeyPatch):
    command = click.Command("targets", callback=raising(HloInspectError("mine")))
    monkeypatch.setattr(importlib.import_module("hloinspect.cli.targets"), "command", command)
    with pytest.raises(HloInspectError, match="mine"):
        main(["targets"], standalone_mode=False)


# --- pipes and signals


def test_a_reader_that_goes_away_is_met_with_silence_and_no_success():
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hloinspect", "targets"], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_into_a_closed_pipe_is_quiet_too():
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hloinspect", "--help"], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """What runs in the background of a script ignores SIGINT, and so do its children; those of this test shall not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_exits_with_130_and_no_traceback(tmp_path: Path, heeds_interrupts: None):
    # A named pipe as the target file: the command waits in reading it until it is interrupted.
    fifo = tmp_path / "slow.toml"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "hloinspect", "targets", str(fifo)], cwd=ROOT, stderr=subprocess.PIPE
    )
    # Opening for writing succeeds only once the command has opened it for reading.
    with fifo.open("w"):
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (130, b"hloinspect: interrupted\n")


# --- the console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("env", "stream", "colour"),
    [
        ({}, Terminal(), True),
        ({}, io.StringIO(), False),
        ({"NO_COLOR": "1"}, Terminal(), False),
        ({"NO_COLOR": ""}, Terminal(), True),
        ({"TERM": "dumb"}, Terminal(), False),
    ],
)
def test_colour_is_for_terminals_whose_user_has_not_said_no(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], stream: io.StringIO, colour: bool
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert use_color(stream) is colour


def test_emit_styles_a_terminal_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for stream, expected in ((Terminal(), "\x1b[1mx\x1b[0m\n"), (io.StringIO(), "x\n")):
        monkeypatch.setattr(sys, "stdout", stream)
        emit(click.style("x", bold=True) + "\n\n", None)
        assert stream.getvalue() == expected


def test_width_is_the_terminals_within_bounds(monkeypatch: pytest.MonkeyPatch):
    assert width(io.StringIO()) == 100
    for columns, expected in (("40", 60), ("80", 80), ("250", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        assert width(Terminal()) == expected
