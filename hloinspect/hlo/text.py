"""Reader of HLO text in every spelling of JAX 0.5 to 0.12, tolerant, and linear in the size of the text.

The spelling depends on who prints it (facts: hlo_instruction.cc ``PrintWithCanonicalNameMap``, debug_options flags
``xla_syntax_sugar_async_ops`` and ``xla_dump_compact_gte``):

* ``compiled.as_text()`` writes async pairs as ``fusion-start(...)``; dumps as ``async-start(...),
  calls=%async_computation``;
* dumps since JAX 0.11 write ``%tuple#3`` instead of a get-tuple-element;
* stack frames are in tables in front of the computations, or inline as ``source_file=... source_line=...``.

Text is split into computations at once. A computation is split into lines, and a line into parts, at first use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from hloinspect.errors import HloParseError
from hloinspect.hlo.calls import check_calls
from hloinspect.hlo.model import Module
from hloinspect.hlo.scan import FrameTables, split_attributes, unquote
from hloinspect.hlo.text_computation import TextComputation
from hloinspect.hlo.text_instruction import TextInstruction

__all__ = ["TextComputation", "TextInstruction", "callees_of", "parse_text"]

_OPENING = re.compile(r"(ENTRY )?%?([\w.\-]+)(?:[ (][^\n]*)?(?<=\{)$", re.MULTILINE)
_CLOSE = re.compile(r"\}(?:\Z|\n|, execution_thread=| //)")
_VALUES = re.compile(r"=\{?(%[\w.\-]+(?:, ?%[\w.\-]+)*)")
_PLAIN_VALUES = re.compile(r"=\{?(%?[\w.\-]+(?:, ?%?[\w.\-]+)*)")
_TPU_MARKS = ("T(8,128)", '"scoped_memory_configs"')
_GPU_MARKS = ("operation_queue_id", "fusion_backend_config", "__cublas", "fingerprint_before_lhs")
_CPU_MARKS = ("outer_dimension_partitions", "__ynn_fusion", "__onednn$", '"lapack_')


def _platform(text: str) -> Literal["gpu", "tpu", "cpu", ""]:
    """Return the platform that compiled the text, or "" for a small module without any of these marks.

    Only the GPU's backend writes queue ids and fingerprints. Only the TPU's writes tiled layouts and scoped memory.
    Only the CPU's writes partitioned loops and LAPACK calls.
    """
    if any(mark in text for mark in _GPU_MARKS):
        return "gpu"
    if any(mark in text for mark in _TPU_MARKS):
        return "tpu"
    return "cpu" if any(mark in text for mark in _CPU_MARKS) else ""


def parse_text(text: str) -> Module:
    """Return the module in HLO text.

    Raises HloParseError, with line and column, for text that is no HLO module or ends in the middle of one. A fault
    inside an instruction is raised at the first use of that instruction.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    begin = len(text) - len(text.lstrip())
    if begin == len(text):
        raise HloParseError("empty: expected HLO text that begins with 'HloModule'")
    line_number = text.count("\n", 0, begin) + 1
    if not text.startswith("HloModule ", begin):
        found = text[begin : begin + 200].partition("\n")[0]
        raise HloParseError(f"expected 'HloModule NAME', found {found[:40]!r}", line_number, 1)
    end = _line_end(text, begin)
    name, _, rest = text[begin + len("HloModule ") : end].partition(",")
    attributes = split_attributes(rest)
    computations = _computations(text, end + 1)
    entries = [computation.name for computation in computations if computation.is_entry]
    if not entries:
        last = text.count("\n") + 1
        raise HloParseError("no ENTRY computation: the text is truncated or no module", last, 1)
    _check_calls(computations, entries[-1])
    return Module(
        name=name.strip(),
        computations={computation.name: computation for computation in computations},
        entry_name=entries[-1],
        is_scheduled=attributes.get("is_scheduled") == "true",
        attributes=attributes,
        platform=_platform(text),
        size_bytes=len(text),
        kind="text",
    )


def _check_calls(computations: Sequence[TextComputation], entry_name: str) -> None:
    """Refuse circular calls, because readers follow calls without a check of their own. Raises HloParseError.

    The fast search of the text may find calls that are none, so a suspected circle is checked.
    """
    callees = {c.name: callees_of(c) for c in computations if not c.is_entry}
    entries = [c for c in computations if c.is_entry]
    called = any(entry_name in names for names in callees.values())
    if called or any(entry.mentions(f"%{entry_name}" if entry.has_percent else entry_name) for entry in entries):
        # otherwise no circle contains the entry computation
        callees.update((entry.name, callees_of(entry)) for entry in entries)
    try:
        check_calls(callees)
    except HloParseError:
        check_calls({c.name: {name for i in c for name in i.called_names} for c in computations})


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _computations(text: str, position: int) -> list[TextComputation]:
    """Return the computations from a position on. The text before the first one has the stack frame tables."""
    found: list[TextComputation] = []
    preamble: list[str] = []
    tables = FrameTables(())
    size = len(text)
    while position < size:
        if text[position] == "\n":
            position += 1
            continue
        header = _OPENING.match(text, position)
        if header is None:
            end = _line_end(text, position)
            if text[end - 1] == "{":
                line_number = text.count("\n", 0, position) + 1
                raise HloParseError(f"expected a computation, found {text[position:end][:60]!r}", line_number, 1)
            if not found:
                preamble.append(text[position:end])
            position = end + 1
            continue
        if not found:
            tables = FrameTables(preamble)
        start = header.end() + 1
        close = text.find("\n}", start - 1)
        if not text.startswith("\n", close + 2) and (close := _closing_line(text, close)) < 0:
            message = f"computation {header.group(2)} is not closed: the text is truncated"
            raise HloParseError(message, text.count("\n") + 1, 1)
        computation = TextComputation(header.group(2), header.group(1) is not None, text, start, close, tables)
        position = close + 3
        if text.startswith(", execution_thread=", close + 2):
            position = _line_end(text, close + 2)
            computation.execution_thread = unquote(text[close + 21 : position].strip())
        elif text.startswith(" //", close + 2):
            position = _line_end(text, close + 2)
        found.append(computation)
    return found


def _closing_line(text: str, position: int) -> int:
    """Return the index of the line break before the line that closes a computation, or -1.

    The search begins at ``position``, a line break before a brace. A line inside an instruction may begin so too.
    """
    while position >= 0:
        if _CLOSE.match(text, position + 1):
            return position
        position = text.find("\n}", position + 1)
    return -1


def callees_of(computation: TextComputation) -> set[str]:
    """Return the names that a computation seems to call: at least those that it calls.

    It is fast: the value of any attribute counts, even in a quoted string. Text without percent signs takes longer.
    """
    text, start, end = computation.module_text, computation.start, computation.end
    values = _PLAIN_VALUES
    if computation.has_percent:
        values = _VALUES
        if text.find("=%", start, end) < 0 and text.find("={%", start, end) < 0:
            return set()
    return {name.strip(" %") for names in values.findall(text, start, end) for name in names.split(",")}
