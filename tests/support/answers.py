"""The answer on an input, for tests that need one and not the way to it."""

from __future__ import annotations

from pathlib import Path

from hloinspect.analyze.answer import answer
from hloinspect.analyze.inspect import Inspection
from hloinspect.analyze.options import JudgeOptions
from hloinspect.analyze.trace import TraceInspection
from hloinspect.options import CompileOptions


def answer_of(source: Path, target: str | None = None, link: str | None = None) -> Inspection | TraceInspection:
    """Return the answer on a file, judged for a target where one is named."""
    return answer(str(source), CompileOptions(), JudgeOptions(target=target, link=link))
