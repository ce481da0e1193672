"""The ``hloinspect`` command: a table of subcommands, and the one place where errors become exit codes.

A subcommand is a module ``hloinspect.cli.<name>`` that defines a click command called ``command``. It is imported only
when it runs (or its own help is shown), so that ``hloinspect --help`` stays quick. It returns its exit code (None is 0)
or calls ``ctx.exit``, and raises :class:`~hloinspect.errors.HloInspectError` for what the user can mend.

Exit codes: 0 good; 1 the gate failed; 2 wrong use, unreadable input or an internal error; 3 not enough evidence to say;
130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import click

from hloinspect._version import __version__
from hloinspect.errors import HloInspectError, printable

PROGRAM = "hloinspect"

COMMANDS = {
    "compile": "Compile a step for a target that is not there.",
    "inspect": "Find the host transfers and say which hide behind compute.",
    "trace": "Measure every host transfer in a profile of a run.",
    "check": "The gate for CI: fail when transfers stall the step too long.",
    "diff": "Show what is different between two steps, modules or traces.",
    "report": "Write one page with a zoomable timeline, for a browser.",
    "passes": "Say what each compiler pass did to the offload.",
    "plan": "Try policies, sizes and flags, and say what fits and is fastest.",
    "maxtext": "Compile an installed MaxText's train step, and inspect it.",
    "calibrate": "Measure the rates of a machine from a trace, for --target.",
    "rules": "Show what it looks for, and what each finding means.",
    "cache": "Show or clear the compilations that are kept.",
    "targets": "Show the hardware it knows, each figure with its source.",
}

EPILOG = """\b
Examples:
  hloinspect inspect train.py:step --target gb200
  hloinspect check train.py:step --target h100 --budget stall=2%
  hloinspect targets gb200

Exit codes: 0 good, 1 the gate failed, 2 wrong use or unreadable input, 3 not enough evidence to say."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
# As a shell reports a process that SIGPIPE ended. Not 0: a gate whose verdict nobody read has not passed.
EXIT_BROKEN_PIPE = 141


class LazyGroup(click.Group):
    """A group whose commands are listed from ``COMMANDS`` and imported only when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"hloinspect.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            nearest = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(COMMANDS)}"
            raise click.UsageError(f"unknown command {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and exit with one of the codes above (completion and ``standalone_mode=False`` are click's own)."""
        if not standalone_mode or "_HLOINSPECT_COMPLETE" in os.environ:
            return super().main(args, PROGRAM, complete_var, standalone_mode=standalone_mode, **extra)
        arguments = list(sys.argv[1:] if args is None else args)
        sys.exit(_exit_code(lambda: self._run(arguments, extra)))

    def _run(self, arguments: list[str], extra: MutableMapping[str, Any]) -> int:
        if not arguments:
            # No command: help, but not success, lest an empty variable in a script pass for a good answer.
            click.echo(self.get_help(click.Context(self, info_name=PROGRAM, **self.context_settings)), err=True)
            return EXIT_USAGE
        gc.disable()  # one short run that makes many objects and no circles: looking for some costs a third of its time
        with self.make_context(PROGRAM, arguments, **extra) as ctx:
            result = self.invoke(ctx)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0


def _exit_code(run: Callable[[], int]) -> int:
    """Run, and return the exit code, with at most two lines on stderr however it ends.

    click's ``main`` cannot do this for us: it exits with 1 when a pipe breaks or the user interrupts, and 1 means that
    the gate has failed.
    """
    try:
        return run()
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"{PROGRAM}: interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit and would complain about the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except click.UsageError as exc:
        _complain(exc.format_message())
        if exc.ctx is not None:
            click.echo(f"try: {exc.ctx.command_path} --help", err=True)
    except (HloInspectError, click.ClickException) as exc:
        _complain(exc.format_message() if isinstance(exc, click.ClickException) else str(exc))
    except OSError as exc:
        _show_traceback()
        _complain(f"{exc.filename}: {exc.strerror}" if exc.filename and exc.strerror else str(exc))
    except Exception as exc:
        if _show_traceback():
            _complain(f"internal error: {type(exc).__name__}: {exc}")
        else:
            again = "run again with HLOINSPECT_TRACEBACK=1 for the traceback"
            _complain(f"internal error: {type(exc).__name__}: {exc}; {again}")
    return EXIT_USAGE


def _complain(message: str) -> None:
    """Write an error as exactly one line."""
    click.echo(f"{PROGRAM}: error: {printable(' '.join(message.split()))}", err=True)


def _show_traceback() -> bool:
    """Print the traceback of the exception being handled, if ``HLOINSPECT_TRACEBACK`` says so; return whether."""
    wanted = os.environ.get("HLOINSPECT_TRACEBACK", "") not in ("", "0")
    if wanted:
        import traceback

        traceback.print_exc()
    return wanted


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def main() -> None:
    """Show whether host transfers of a JAX step (activation or optimizer offload) hide behind compute.

    Before a run, and without an accelerator, from the compiled module; after a run from its profile.
    """
