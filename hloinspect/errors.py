"""Errors that a user may see: one clear line each, exit code 2."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text from outside with ``?`` for every character that is not printable.

    Names in a module may hold control characters (of 7 or 8 bits), and marks that reverse the direction of writing.
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


class HloInspectError(Exception):
    """Base of every error that the user can correct. Its text is one line. It names the input and what was expected."""


class InputError(HloInspectError):
    """An input that cannot be read: missing, truncated, too large, or not what it claims to be."""


class HloParseError(InputError):
    """HLO text or a proto that cannot be read. ``line`` and ``column`` count from 1. They are 0 for a proto."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        where = f"line {line}, column {column}: " if line else ""
        super().__init__(f"{where}{message}")
        self.line = line
        self.column = column


class TargetError(HloInspectError):
    """An unknown target, or a target file that is not valid."""


class CompileError(HloInspectError):
    """A step that could not be compiled. The text is the message of the child process, shortened to one line.

    ``detail`` holds the rest of that message. ``code`` is the code of the rule that knows the error (HLO308), or "".
    """

    def __init__(self, message: str, detail: str = "", code: str = "") -> None:
        super().__init__(message)
        self.detail = detail
        self.code = code


class UsageError(HloInspectError):
    """Options or arguments that contradict each other."""
