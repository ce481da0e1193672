"""What went wrong in a child process, in one line for the user (child process only)."""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path

from hloinspect.compile.child import tuned

_LONGEST_MESSAGE = 600


class ChildError(Exception):
    """An error whose text is the one line that the user sees."""


def one_line(error: BaseException) -> str:
    """Return the gist of an error with the user's line that it is about, where one is known."""
    if isinstance(error, ChildError | tuned.TunedError):
        return " ".join(str(error).split())[:_LONGEST_MESSAGE]
    if isinstance(error, SystemExit):
        text = f"the step's code called sys.exit({error.code!r})"
    else:
        text = f"{type(error).__name__}: {_gist(error)}"
    where = _user_frame(error) or "; ".join(getattr(error, "users_lines", ()))
    return " ".join(text.split())[:_LONGEST_MESSAGE] + (f" ({where})" if where else "")


def _gist(error: BaseException) -> str:
    """Return the first paragraph of an error's text, with the next one where the first only announces it."""
    if isinstance(error, SyntaxError):
        return error.msg
    paragraphs = [part for part in re.split(r"\n\s*\n", str(error)) if part.strip()]
    announced = bool(paragraphs) and paragraphs[0].rstrip().endswith(":")
    return "\n\n".join(paragraphs[: 2 if announced else 1])


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(error).strip().partition("\n")[0]


def _user_frame(error: BaseException) -> str | None:
    """Return ``file:line, in function`` of the innermost frame that is not ours, a package's or the standard
    library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno}, in {frame.name}"
    return None


def _is_users(filename: str) -> bool:
    if filename.startswith("<") or f"{os.sep}site-packages{os.sep}" in filename:
        return False
    ours, stdlib = str(Path(__file__).parents[1]), str(Path(os.__file__).parent)
    return not filename.startswith((ours + os.sep, stdlib + os.sep))
