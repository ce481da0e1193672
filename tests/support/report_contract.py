"""The JSON contract ``hloinspect.report/1`` as a checker: every key there, nothing else, every type as promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]


def number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def text(value: Any) -> bool:
    return isinstance(value, str)


def truth(value: Any) -> bool:
    return isinstance(value, bool)


def null(value: Any) -> bool:
    return value is None


def text_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(text(key) and text(item) for key, item in value.items())


def one_of(*choices: str) -> Check:
    return lambda value: value in choices


class Maybe:
    """The value, or null."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


INPUT = {"path": text, "kind": one_of("text", "proto", "compiled", "step", "dump", "trace"), "sha256": Maybe(text)}
CONFIGURATION = dict.fromkeys(("compile_options", "jax", "environment", "libraries"), text_by_name) | dict.fromkeys(
    ("compile_options_sha256", "target_config_sha256"), Maybe(text)
)
PROGRAM = {
    "jax": Maybe(text),
    "jaxlib": Maybe(text),
    "flags": Maybe([text]),
    "topology": Maybe(text),
    "autotuned": Maybe(truth),
    "flags_from": Maybe(text),
    "autotune_results": Maybe({"path": text, "missing": integer, "of": Maybe(integer)}),
    "pgle": Maybe({"path": text, "matched": integer, "of": integer}),
    "configuration": Maybe(CONFIGURATION),
}
TARGET = {
    "name": text,
    "devices": integer,
    "link": Maybe(
        {"d2h_gbps": number, "h2d_gbps": number, "duplex_factor": number, "duplex": {"d2h": number, "h2d": number}}
    ),
}
PREDICTED_STEP = dict.fromkeys(
    (
        *("time_ms", "low_ms", "high_ms", "compute_ms", "collective_exposed_ms", "stall_ms", "stall_low_ms"),
        *("stall_high_ms", "stall_d2h_ms", "stall_h2d_ms", "without_transfers_ms", "ideal_ms"),
        *("busy_d2h_ms", "busy_h2d_ms"),
    ),
    number,
) | {"exposed_ms": {"d2h": number, "h2d": number, "total": number}}
PREDICTED_TRANSFER = dict.fromkeys(
    ("duration_each_ms", "duration_ms", "cover_ms", "exposed_ms", "wait_ms", "low_ms", "high_ms"), number
) | {
    "gain_if_free_ms": Maybe(number),
    "needed_link_gbps": Maybe(number),
    "binding": Maybe(one_of("window", "queue", "link", "barrier", "collective", "elsewhere", "synchronous")),
    "missing_each_ms": Maybe(number),
    "largest_hidden_bytes": Maybe(integer),
}
RELEASE = {
    "bytes": integer,
    "made": text,
    "freed": text,
    "freed_computation": text,
    "late": truth,
    "before_backward": Maybe(truth),
    "held_ms": Maybe(number),
    "held_bytes_ms": Maybe(number),
}
PEAK = {
    "instruction": text,
    "computation": text,
    "bytes": integer,
    "values": [
        {
            "name": text,
            "computation": text,
            "dtype": text,
            "shape": [integer],
            "bytes": integer,
            "kind": one_of("argument", "result", "temporary"),
            "source": Maybe({"file": text, "line": integer, "function": Maybe(text)}),
        }
    ],
    "others": integer,
    "other_bytes": integer,
}
SPREAD = dict.fromkeys(("mean", "median", "p90", "min", "max"), number)
EXPOSED = {"d2h": number, "h2d": number, "total": number}
MEASURED_STEP = dict.fromkeys(
    (
        *("time_ms", "compute_ms", "collective_exposed_ms", "stall_ms", "stall_d2h_ms", "stall_h2d_ms", "idle_ms"),
        *("host_bound_ms", "busy_d2h_ms", "busy_h2d_ms"),
    ),
    number,
) | {
    "exposed_ms": EXPOSED,
    "step_ms": SPREAD,
    "stall_spread_ms": SPREAD,
    "steps_analyzed": integer,
    "steps_seen": integer,
    "steps_set_aside": [{"reason": text, "count": integer}],
}
MEASURED_TRANSFER = dict.fromkeys(
    (*("duration_each_ms", "duration_ms", "runs", "cover_ms", "exposed_ms", "wait_ms", "median_ms", "p90_ms"),),
    number,
) | {
    "is_window": truth,
    "wait_spread_ms": SPREAD,
    "exposed_spread_ms": SPREAD,
    "gbps": Maybe(number),
    "gbps_alone": Maybe(number),
    "gbps_together": Maybe(number),
    "wait_ratio": Maybe(number),
}
DEVICE = dict.fromkeys(
    ("compute_ms", "collective_exposed_ms", "stall_ms", "idle_ms", "host_bound_ms"), Maybe(number)
) | {
    "name": text,
    "host": text,
    "steps_analyzed": integer,
    "steps_seen": integer,
    "step_ms": Maybe(SPREAD),
    "stall_spread_ms": Maybe(SPREAD),
    "exposed_ms": Maybe(EXPOSED),
    "all_steps": {"steps": integer, "time_ms": number, "compute_ms": number, "stall_ms": number},
    "set_aside": [{"step": integer, "start_ms": number, "reason": text, "detail": text}],
}
TRACE = {
    "files": [text],
    "hosts": [text],
    "device_type": text,
    "events": integer,
    "classified": lambda value: isinstance(value, dict) and set(value) <= {"hlo", "memcpy", "name"},
    "hidden_events": integer,
    "programs": [
        {
            "name": text,
            "program_id": integer,
            "runs": integer,
            "device_ms": number,
            "transfers": Maybe(integer),
            "is_step": truth,
        }
    ],
    "other_copies": [{"direction": one_of("d2h", "h2d"), "count": integer, "bytes": integer, "device_ms": number}],
    "unread": [text],
    "per_host": [
        {
            **{"host": text, "file": text, "devices": integer, "slowest_device": Maybe(text)},
            "step": Maybe(MEASURED_STEP),
        }
    ],
    "expected": Maybe(
        {
            "path": text,
            "status": one_of("same", "same transfers", "different"),
            "schedule_hash": text,
            "differences": [text],
        }
    ),
}
TRANSFER = {
    "id": integer,
    "direction": one_of("d2h", "h2d"),
    "mechanism": one_of("dma", "kernel", "unknown"),
    "asynchronous": truth,
    "bytes": integer,
    "executions": integer,
    "bytes_per_step": integer,
    "tensor": {"dtype": text, "shape": [integer], "name": Maybe(text)},
    "start": text,
    "done": Maybe(text),
    "computation": text,
    "loop_depth": integer,
    "stream": Maybe(text),
    "source": Maybe({"file": text, "line": integer, "function": Maybe(text)}),
    "round_trip": Maybe(integer),
    "partners": [integer],
    "outcome": text,
    "queued_behind": Maybe(integer),
    "verdict": one_of("hidden", "partial", "exposed", "synchronous", "unknown"),
    "robust": Maybe(truth),
    "reason": text,
    "predicted": Maybe(PREDICTED_TRANSFER),
    "measured": Maybe(MEASURED_TRANSFER),
    "release": Maybe(RELEASE),
}
REPORT = {
    "schema": one_of("hloinspect.report/1"),
    "hloinspect": text,
    "input": INPUT,
    "module": {
        "name": text,
        "platform": one_of("gpu", "tpu", "cpu", "unknown"),
        "fingerprint": text,
        "schedule_hash": text,
        "instructions": integer,
    },
    "program": PROGRAM,
    "target": Maybe(TARGET),
    "thresholds": {"hidden": number, "exposed": number},
    "step": {"predicted": Maybe(PREDICTED_STEP), "measured": Maybe(MEASURED_STEP)},
    "memory": {
        "device_bytes": Maybe(integer),
        "host_bytes": Maybe(integer),
        "device_limit_bytes": Maybe(integer),
        "host_limit_bytes": Maybe(integer),
        "source": one_of("artifacts", "estimated", "unknown"),
        "peak": Maybe(PEAK),
        "backward": Maybe(text),
    },
    "transfers": [TRANSFER],
    "host_values": [{"kind": one_of("parameter", "result"), "name": text, "bytes": integer}],
    "host_events": [
        {
            "kind": text,
            "instruction": text,
            "computation": text,
            "executions": integer,
            "to_host_bytes": integer,
            "from_host_bytes": integer,
            "detail": text,
        }
    ],
    "host_copies": [
        {"instruction": text, "computation": text, "mechanism": text, "bytes": integer, "executions": integer}
    ],
    "findings": [
        {
            "code": text,
            "name": text,
            "severity": one_of("error", "warning", "info"),
            "message": text,
            "remedy": text,
            "transfer": Maybe(integer),
            "instruction": Maybe(text),
            "source": Maybe({"file": text, "line": integer, "function": Maybe(text)}),
            "evidence": lambda value: isinstance(value, dict),
            "transfers": [integer],
            "computation": Maybe(text),
            "loop": Maybe(text),
            "cost_ms": Maybe(number),
            "gain_ms": Maybe(number),
            "source_text": Maybe(text),
        }
    ],
    "devices": [DEVICE],
    "trace": Maybe(TRACE),
    "limits": [text],
    "rules_not_run": [{"code": text, "name": text, "reason": text}],
    "rules_left_out": [{"code": text, "name": text, "reason": text}],
    "unknown": [{"reason": text, "remedy": text, "affects": one_of("time", "memory", "transfers")}],
    "audit": Maybe(
        {
            "requested_from": Maybe(one_of("jaxpr", "stablehlo", "hlo")),
            "entries": [
                {
                    "kind": one_of("value", "argument", "result", "compute", "name"),
                    "direction": Maybe(one_of("d2h", "h2d")),
                    "by": one_of("policy", "device_put", "sharding", "annotation", "compute_on", "flag"),
                    **dict.fromkeys(("name", "dtype", "reason", "remedy", "pass_name"), Maybe(text)),
                    "shape": [integer],
                    "requested": integer,
                    "runs": integer,
                    "outcome": one_of(
                        *("kept", "synchronous", "kernel", "merged", "host compute", "dropped", "unused"),
                        "never matched",
                    ),
                    "cause": Maybe(
                        one_of(
                            *("folded", "dead", "constant", "lowering", "memory kind", "unknown name", "not needed"),
                            "no transfer",
                        )
                    ),
                    "transfers": [integer],
                    "source": Maybe({"file": text, "line": integer, "function": Maybe(text)}),
                }
            ],
            "unexplained": [integer],
            "unexplained_host": [text],
            "unknown": [{"reason": text, "remedy": text, "affects": one_of("audit")}],
        }
    ),
}
MADE = dict.fromkeys(("jax", "jaxlib", "topology"), Maybe(text)) | {
    "hloinspect": text,
    "flags": Maybe([text]),
    "d2h_gbps": Maybe(number),
    "h2d_gbps": Maybe(number),
    "module": text,
    "fingerprint": text,
    "schedule_hash": text,
    "configuration": Maybe(CONFIGURATION),
}
SIDE = {"step": text, "target": Maybe(text), "devices": integer, "kind": one_of("predicted", "measured"), "made": MADE}
TRANSFER_GROUP = dict.fromkeys(("loop_depth", "count", "runs", "bytes", "bytes_per_step"), integer) | {
    "direction": one_of("d2h", "h2d"),
    "dtype": text,
    "shape": [integer],
    "name": Maybe(text),
    "file": Maybe(text),
    "function": Maybe(text),
    "line": Maybe(integer),
    "mechanisms": lambda value: all(text(key) and integer(count) for key, count in value.items()),
    "verdicts": lambda value: all(text(key) and integer(count) for key, count in value.items()),
    "duration_ms": Maybe(number),
    "cover_ms": Maybe(number),
    "wait_ms": Maybe(number),
}
PLACE = {"file": Maybe(text), "function": Maybe(text), "line": Maybe(integer)}
FINDING_GROUP = PLACE | {
    "code": text,
    "name": text,
    "severity": one_of("error", "warning", "info"),
    "count": integer,
    "subjects": Maybe([PLACE | {"name": Maybe(text), "array": Maybe(text)}]),
}
CHANGE = one_of("came", "went", "changed")
DIFFERENCE = {
    "before": SIDE,
    "after": SIDE,
    "made": [text],
    "metrics": [
        {"metric": text, "before": Maybe(number), "after": Maybe(number), "unit": one_of("ms", "bytes", "count")}
    ],
    "transfers": [
        {
            "kind": CHANGE,
            "before": Maybe(TRANSFER_GROUP),
            "after": Maybe(TRANSFER_GROUP),
            "what": [text],
            "cost_ms": Maybe(number),
        }
    ],
    "findings": [{"kind": CHANGE, "before": Maybe(FINDING_GROUP), "after": Maybe(FINDING_GROUP)}],
    "lost": [text],
    "lost_runs": integer,
    "explanation": [text],
}
DIFF = DIFFERENCE | {"schema": one_of("hloinspect.diff/1")}
STEP = {"input": text, "name": text, "target": Maybe(text)}
BUDGET_CHECKS = {
    "schema": one_of("hloinspect.check/1"),
    "status": one_of("passed", "failed", "unknown", "error"),
    "errors": [STEP | {"message": text, "code": Maybe(text)}],
    "blocking": [
        STEP
        | {
            "code": text,
            "rule": text,
            "severity": one_of("error"),
            "message": text,
            "remedy": text,
            "source": Maybe({"file": text, "line": integer, "function": Maybe(text)}),
        }
    ],
    "notes": [STEP | {"code": text, "kind": one_of("found", "left out", "could not look", "undecided"), "text": text}],
    "new_findings": [
        STEP
        | {key: value for key, value in FINDING_GROUP.items() if key != "name"}
        | {"rule": text, "allowed_by": [text]}
    ],
    "checks": [
        {
            "input": text,
            "name": text,
            "target": Maybe(text),
            "budget": {
                "text": text,
                "metric": text,
                "op": one_of("=", "+"),
                "limit": number,
                "unit": one_of("%", "ms", "bytes", "count"),
            },
            "status": one_of("within", "over", "unknown", "missing"),
            "value": Maybe(number),
            "limit": Maybe(number),
            "baseline": Maybe(number),
            "unit": one_of("%", "ms", "bytes", "count"),
            "value_ms": Maybe(number),
            "limit_ms": Maybe(number),
            "kind": one_of("predicted", "measured"),
            "reason": text,
        }
    ],
    "differences": [DIFFERENCE],
}


def complaints(value: Any, expected: Any, path: str = "$") -> list[str]:
    """What is not as the contract says, each with its place; nothing if all is."""
    if isinstance(expected, Maybe):
        return [] if value is None else complaints(value, expected.inner, path)
    if isinstance(expected, list):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [said for n, item in enumerate(value) for said in complaints(item, expected[0], f"{path}[{n}]")]
    if isinstance(expected, dict):
        if not isinstance(value, dict):
            return [f"{path} is no object"]
        found = [f"{path}.{key} is missing" for key in expected.keys() - value.keys()]
        found += [f"{path}.{key} is not in the contract" for key in value.keys() - expected.keys()]
        return found + [
            said for key in expected if key in value for said in complaints(value[key], expected[key], f"{path}.{key}")
        ]
    return [] if expected(value) else [f"{path} is {value!r}"]


def keys_of(expected: Any) -> set[str]:
    """Every key that the contract names."""
    if isinstance(expected, Maybe):
        return keys_of(expected.inner)
    if isinstance(expected, list):
        return keys_of(expected[0])
    if isinstance(expected, dict):
        return set(expected) | {key for inner in expected.values() for key in keys_of(inner)}
    return set()
