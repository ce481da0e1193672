"""The page's data: columns and a table of strings as JSON, which the page's script reads (assets/decode.js)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from hloinspect.render.page.bands import LANES, Strings, encode_band
from hloinspect.render.page.sides import Side
from hloinspect.render.terminal.report_text import tensor_text, where_text
from hloinspect.report.json import rounded
from hloinspect.report.link import link_that_hides_gbps
from hloinspect.report.schema import FindingInfo, Report, TransferInfo

FORMAT = 1

_TEXTS = frozenset(
    {
        *("direction", "mechanism", "tensor", "start", "done", "computation", "where", "file", "function", "stream"),
        *("outcome", "partners", "verdict", "reason", "shape"),
    }
)
"""Columns of transfers that hold numbers of strings."""

_FROM_PREDICTION = (
    *("duration_each_ms", "duration_ms", "cover_ms", "exposed_ms", "wait_ms", "gain_if_free_ms"),
    *("low_ms", "high_ms", "needed_link_gbps"),
)
_FROM_MEASUREMENT = (
    *("duration_each_ms", "duration_ms", "cover_ms", "exposed_ms", "wait_ms", "median_ms"),
    *("p90_ms", "gbps", "gbps_alone", "wait_ratio", "is_window", "runs"),
)


def island(sides: Sequence[Side]) -> str:
    """Return the data as JSON text that may stand in a script element: it holds no ``<``, ``>`` or ``&``, and only
    ASCII."""
    strings = Strings()
    data: dict[str, object] = {
        "format": FORMAT,
        "lanes": list(LANES),
        "sides": [_side(side, strings) for side in sides],
    }
    data["strings"] = strings.table
    text = json.dumps(rounded(data), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _side(side: Side, strings: Strings) -> dict[str, object]:
    report = side.report
    memory = report.memory
    return {
        "label": side.label,
        "module": strings.number(report.module.name),
        "measured": report.step.measured is not None,
        "predicted": report.step.predicted is not None,
        "memory": {
            "device_bytes": memory.device_bytes,
            "host_bytes": memory.host_bytes,
            "device_limit_bytes": memory.device_limit_bytes,
            "host_limit_bytes": memory.host_limit_bytes,
        },
        "transfers": columns([_transfer(report, transfer) for transfer in report.transfers], strings),
        "findings": [_finding(finding, number, strings) for number, finding in enumerate(report.findings)],
        "bands": [encode_band(band, strings) for band in side.bands],
    }


def columns(rows: Sequence[Mapping[str, object]], strings: Strings) -> dict[str, object]:
    """Return rows with the same keys as columns; a column of one value throughout is a list of that value alone."""
    found: dict[str, object] = {"count": len(rows), "texts": sorted(_TEXTS)}
    if not rows:
        return {**found, "columns": {}}
    made: dict[str, list[object]] = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        if key in _TEXTS:
            values = [None if value is None else strings.number(str(value)) for value in values]
        values = [rounded(value) for value in values]
        made[key] = values[:1] if all(type(v) is type(values[0]) and v == values[0] for v in values) else values
    return {**found, "columns": made}


def _transfer(report: Report, transfer: TransferInfo) -> dict[str, object]:
    source, release = transfer.source, transfer.release
    row: dict[str, object] = {
        "id": transfer.id,
        "direction": transfer.direction,
        "mechanism": transfer.mechanism,
        "asynchronous": int(transfer.asynchronous),
        "bytes": transfer.bytes,
        "executions": transfer.executions,
        "bytes_per_step": transfer.bytes_per_step,
        "tensor": tensor_text(transfer),
        "shape": f"{transfer.tensor.dtype}[{','.join(map(str, transfer.tensor.shape))}]",
        "start": transfer.start,
        "done": transfer.done,
        "computation": transfer.computation,
        "loop_depth": transfer.loop_depth,
        "where": where_text(transfer),
        "file": source.file if source else None,
        "line": source.line if source else None,
        "function": source.function if source else None,
        "stream": transfer.stream,
        "round_trip": transfer.round_trip,
        "partners": " ".join(map(str, transfer.partners)),
        "outcome": transfer.outcome,
        "queued_behind": transfer.queued_behind,
        "verdict": transfer.verdict,
        "robust": None if transfer.robust is None else int(transfer.robust),
        "reason": transfer.reason,
        "freed_bytes": release.bytes if release else None,
        "late": int(release.late) if release else None,
    }
    for prefix, names, times in (
        ("p", _FROM_PREDICTION, transfer.predicted),
        ("m", _FROM_MEASUREMENT, transfer.measured),
    ):
        values = asdict(times) if times is not None else {}
        row |= {f"{prefix}.{name}": _number(values.get(name)) for name in names}
    row["p.needed_link_gbps"] = _number(link_that_hides_gbps(report, transfer))
    return row


def _number(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return int(value) if isinstance(value, bool) else value


def _finding(finding: FindingInfo, number: int, strings: Strings) -> dict[str, object]:
    return {
        "number": number,
        "code": finding.code,
        "name": strings.number(finding.name),
        "severity": finding.severity,
        "remedy": strings.number(finding.remedy),
        "message": strings.number(finding.message),
        "transfers": list(finding.transfers),
        "cost_ms": finding.cost_ms,
    }
