"""Target files: TOML into a checked :class:`Target`. A built-in target is one file in ``specs/``, and nothing else."""

from __future__ import annotations

import difflib
import math
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hloinspect.errors import TargetError
from hloinspect.hardware.target import Figure, HostLink, Level, Range, Target

LEAST_RATE, MOST_RATE = 1e6, 1e24
"""Bytes or operations a second of anything that is hardware: what is slower takes longer than can be counted."""

MOST_US = 1e9
"""Microseconds of any latency: a quarter of an hour."""

_LEAST_SHARE = 1e-3
_SPECS = Path(__file__).parent / "specs"
_CONFIGS = Path(__file__).parent / "target_configs"

_FIGURES = ("vector_flops", "hbm_bytes", "hbm_bytes_per_s", "launch_us")
_EFFICIENCIES = ("matmul_efficiency", "memory_efficiency")
_REQUIRED = ("title", "platform", "peak_flops", "levels", *_FIGURES, *_EFFICIENCIES)
_OPTIONAL = (
    "name",
    "aliases",
    "base",
    "link",
    "xla_target_config",
    "xla_topology_name",
    "notes",
    "collective_efficiency",
    "multiprocessors",
    "dtype_efficiency",
    "stand_in",
    "devices_per_chip",
)
_LINK_REQUIRED = ("d2h_bytes_per_s", "h2d_bytes_per_s", "duplex_factor", "latency_us", "sharers", "efficiency")
_LINK_OPTIONAL = ("host_bytes_per_s", "host_memory_bytes", "host_d2h_bytes_per_s", "host_h2d_bytes_per_s")
# XLA's spelling (xla_data.proto, PrimitiveType), so that a dtype read from HLO finds its peak.
_DTYPE = re.compile(r"bf16|f16|f32|f64|[su](4|8|16|32)|f8e\w+|f4e\w+")


COLLECTIVE_EFFICIENCY = Range(
    0.7, 0.85, 1.0, "estimate: share of the links' rate that a large collective reaches; not measured here", True
)
"""For targets whose file gives none."""


def target_names() -> tuple[str, ...]:
    """Return the names of the built-in targets, sorted."""
    return tuple(sorted(path.stem for path in _SPECS.glob("*.toml")))


def load_target(name_or_path: str) -> Target:
    """Return the target of that name or alias (``gb200``, ``a100``), or the one in a file (a path ending in ``.toml``).

    A file may say ``base = "gb200"`` and give only what differs: tables are merged, a figure is replaced as a whole,
    and ``levels`` too. In such a file a figure may be a bare number; its source is then the file.

    Raises TargetError for an unknown name (it says the nearest and all of them), and for a file that cannot be read, is
    not TOML, or has an unknown, missing or impossible value (it names the file and the key).
    """
    if name_or_path.endswith(".toml"):
        return _load_file(Path(name_or_path))
    name = _canonical(name_or_path)
    document = _read(_SPECS / f"{name}.toml")
    return _target(_Node(f"{name}.toml", "", document), name)


def target_config_text(target: Target) -> str:
    """Return the text of the ``GpuTargetConfigProto`` with which XLA compiles for ``target`` (GPU only).

    Raises TargetError where the target has none, or its file cannot be read.
    """
    if target.xla_target_config is None:
        raise TargetError(f"target {target.name} has no xla_target_config: there is nothing to compile for it with")
    # An absolute path, which a user's file has, replaces the directory.
    path = _CONFIGS / target.xla_target_config
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise TargetError(f"{target.xla_target_config}: cannot read the XLA target config: {_reason(exc)}") from exc


def target_of_device(description: str) -> str | None:
    """Name of the known target whose XLA configuration describes itself as ``description`` (``NVIDIA GB200``), or
    None."""
    if not description:
        return None
    for name in target_names():
        target = load_target(name)
        if target.stand_in or not target.xla_target_config:  # a stand-in's description is another target's
            continue
        if f'device_description_str: "{description}"' in target_config_text(target):
            return name
    return None


def _canonical(name: str) -> str:
    wanted = name.lower()
    names = target_names()
    if wanted in names:
        return wanted
    aliases: dict[str, str] = {}
    for own in names:
        document = _read(_SPECS / f"{own}.toml")
        if "aliases" in document:
            listed = _Node(f"{own}.toml", "", document).child("aliases").items()
            aliases |= {alias.text(): own for alias in listed}
    if wanted in aliases:
        return aliases[wanted]
    nearest = difflib.get_close_matches(wanted, [*names, *aliases], n=1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    raise TargetError(f"unknown target {name!r}: {hint}known are {', '.join(names)}, or a path ending in .toml")


def _load_file(path: Path) -> Target:
    document = _read(path)
    root = _Node(path.name, "", document)
    base = document.get("base")
    if base is not None:
        below = _read(_SPECS / f"{_canonical(root.child('base').text())}.toml")
        document = {"title": f"{below['title']}, as changed by {path.name}"} | document
        document = _overlay(below, document)
        root = _Node(path.name, "", document)
    if "xla_target_config" in document:
        config = root.child("xla_target_config").text()
        if not (_CONFIGS / config).is_file():
            document["xla_target_config"] = str((path.parent / config).resolve())
    return _target(root, root.child("name").text() if "name" in document else path.stem)


def _overlay(below: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Return ``below`` with ``over`` laid on it, table by table. A figure (it has a ``value``) is replaced as a whole,
    else a new number would keep the source of the old one."""
    merged = dict(below)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and "value" not in old and "value" not in value:
            merged[key] = _overlay(old, value)
        else:
            merged[key] = value
    return merged


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as exc:
        raise TargetError(f"{path}: not valid TOML: {exc}") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise TargetError(f"{path}: cannot read this target file: {_reason(exc)}") from exc


def _reason(exc: Exception) -> str:
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    if isinstance(exc, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return "it is nested too deeply" if isinstance(exc, RecursionError) else str(exc)


@dataclass(frozen=True, slots=True)
class _Node:
    """A value of a target file with the way to it, so that every complaint names the file and the key."""

    file: str
    path: str
    value: object

    def fail(self, problem: str) -> NoReturn:
        raise TargetError(f"{self.file}: {self.path}: {problem}" if self.path else f"{self.file}: {problem}")

    def child(self, key: str) -> _Node:
        assert isinstance(self.value, dict)
        return _Node(self.file, f"{self.path}.{key}" if self.path else key, self.value[key])

    def keys(self, required: Iterable[str], optional: Iterable[str] = ()) -> set[str]:
        """Return the keys of this table; fail unless it has the required ones and no others than the optional ones."""
        if not isinstance(self.value, dict):
            self.fail(f"expected a table, found {self.value!r}")
        known = [*required, *optional]
        for key in self.value:
            if key not in known:
                nearest = difflib.get_close_matches(key, known, n=1)
                self.fail(f"unknown key {key!r}" + (f": did you mean {nearest[0]}?" if nearest else ""))
        missing = [key for key in required if key not in self.value]
        if missing:
            self.fail(f"missing key {missing[0]!r}")
        return set(self.value)

    def items(self) -> list[_Node]:
        if not isinstance(self.value, list):
            self.fail(f"expected an array, found {self.value!r}")
        return [_Node(self.file, f"{self.path}[{i}]", item) for i, item in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value.strip() or not self.value.isprintable():
            self.fail(f"expected one line of text, found {self.value!r}")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.fail(f"expected true or false, found {self.value!r}")
        return self.value

    def number(self, at_least: float = 0.0, at_most: float = math.inf) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.fail(f"expected a number, found {self.value!r}")
        if not 0 < self.value <= sys.float_info.max:
            self.fail(f"must be above zero and finite, found {self.value!r}")
        if self.value < at_least:
            self.fail(f"must be at least {at_least:g}, found {self.value!r}")
        if self.value > at_most:
            self.fail(f"must be at most {at_most:g}, found {self.value!r}")
        return float(self.value)

    def count(self) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 1:
            self.fail(f"expected a whole number above zero, found {self.value!r}")
        return self.value

    def rate(self, may_differ: bool = False) -> Figure:
        """Something a second."""
        return self.figure(LEAST_RATE, MOST_RATE, may_differ)

    def time_us(self) -> Figure:
        """A latency or a time to launch."""
        return self.figure(at_most=MOST_US)

    def figure(self, at_least: float = 0.0, at_most: float = math.inf, may_differ: bool = False) -> Figure:
        """One number; ``may_differ``: a prediction's range covers what other sources say of it (low, high)."""
        if not isinstance(self.value, dict):
            return Figure(self.number(at_least, at_most), f"given in {self.file}")
        keys = self.keys(("value", "source"), ("estimate", "announced", *(("low", "high") if may_differ else ())))
        marks = {key: key in keys and self.child(key).flag() for key in ("estimate", "announced")}
        value = self.child("value").number(at_least, at_most)
        low, high = (self.child(key).number(at_least, at_most) if key in keys else None for key in ("low", "high"))
        if not (value if low is None else low) <= value <= (value if high is None else high):
            self.fail(f"expected low <= value <= high, found {low or value:g}, {value:g}, {high or value:g}")
        return Figure(value, self.child("source").text(), **marks, low=low, high=high)

    def range(self) -> Range:
        if not isinstance(self.value, dict):
            share = self.number(_LEAST_SHARE, 1.0)
            return Range(share, share, share, f"given in {self.file}")
        keys = self.keys(("low", "value", "high", "source"), ("estimate",))
        low, value, high = (self.child(key).number(_LEAST_SHARE, 1.0) for key in ("low", "value", "high"))
        if not low <= value <= high:
            self.fail(f"expected low <= value <= high, found {low:g}, {value:g}, {high:g}")
        estimate = "estimate" in keys and self.child("estimate").flag()
        return Range(low, value, high, self.child("source").text(), estimate)


def _target(root: _Node, name: str) -> Target:
    keys = root.keys(_REQUIRED, _OPTIONAL)
    platform = root.child("platform")
    if platform.text() not in ("gpu", "tpu"):
        platform.fail(f"expected gpu or tpu, found {platform.value!r}")
    levels = root.child("levels").items()
    if "aliases" in keys:
        for alias in root.child("aliases").items():
            alias.text()
    return Target(
        name=name,
        title=root.child("title").text(),
        platform=platform.text(),
        peak_flops=_peaks(root.child("peak_flops")),
        vector_flops=root.child("vector_flops").rate(),
        hbm_bytes=root.child("hbm_bytes").figure(at_most=MOST_RATE),
        hbm_bytes_per_s=root.child("hbm_bytes_per_s").rate(may_differ=True),
        launch_us=root.child("launch_us").time_us(),
        link=_link(root.child("link")) if "link" in keys else None,
        levels=tuple(_level(level) for level in levels),
        matmul_efficiency=root.child("matmul_efficiency").range(),
        memory_efficiency=root.child("memory_efficiency").range(),
        collective_efficiency=(
            root.child("collective_efficiency").range() if "collective_efficiency" in keys else COLLECTIVE_EFFICIENCY
        ),
        xla_target_config=root.child("xla_target_config").text() if "xla_target_config" in keys else None,
        xla_topology_name=root.child("xla_topology_name").text() if "xla_topology_name" in keys else None,
        notes=tuple(note.text() for note in root.child("notes").items()) if "notes" in keys else (),
        multiprocessors=root.child("multiprocessors").count() if "multiprocessors" in keys else None,
        dtype_efficiency=_efficiencies(root.child("dtype_efficiency")) if "dtype_efficiency" in keys else {},
        stand_in=root.child("stand_in").text() if "stand_in" in keys else None,
        devices_per_chip=root.child("devices_per_chip").count() if "devices_per_chip" in keys else 1,
    )


def _efficiencies(node: _Node) -> dict[str, Range]:
    return {dtype: node.child(dtype).range() for dtype in _dtypes(node)}


def _dtypes(node: _Node) -> list[str]:
    if not isinstance(node.value, dict):
        node.fail(f"expected a table, found {node.value!r}")
    for dtype in node.value:
        if not _DTYPE.fullmatch(dtype):
            node.fail(f"{dtype!r} is not an XLA dtype such as bf16, f8e4m3fn or s8")
    return list(node.value)


def _peaks(node: _Node) -> dict[str, Figure]:
    dtypes = _dtypes(node)
    if "bf16" not in dtypes:
        node.fail("missing key 'bf16'")
    return {dtype: node.child(dtype).rate(may_differ=True) for dtype in dtypes}


def _link(node: _Node) -> HostLink:
    keys = node.keys(_LINK_REQUIRED, _LINK_OPTIONAL)
    d2h_duplex, h2d_duplex = _duplex(node.child("duplex_factor"))

    def optional(key: str) -> Figure | None:
        return node.child(key).rate() if key in keys else None

    return HostLink(
        d2h_bytes_per_s=node.child("d2h_bytes_per_s").rate(),
        h2d_bytes_per_s=node.child("h2d_bytes_per_s").rate(),
        d2h_duplex=d2h_duplex,
        h2d_duplex=h2d_duplex,
        latency_us=node.child("latency_us").time_us(),
        sharers=node.child("sharers").count(),
        host_bytes_per_s=optional("host_bytes_per_s"),
        host_memory_bytes=optional("host_memory_bytes"),
        efficiency=node.child("efficiency").range(),
        host_d2h_bytes_per_s=optional("host_d2h_bytes_per_s"),
        host_h2d_bytes_per_s=optional("host_h2d_bytes_per_s"),
    )


def _duplex(node: _Node) -> tuple[Figure, Figure]:
    """One figure for both directions, or a table with one for each."""
    if isinstance(node.value, dict) and "value" not in node.value and node.value.keys() & {"d2h", "h2d"}:
        node.keys(("d2h", "h2d"))
        return node.child("d2h").figure(_LEAST_SHARE, 1.0), node.child("h2d").figure(_LEAST_SHARE, 1.0)
    figure = node.figure(_LEAST_SHARE, 1.0)
    return figure, figure


def _level(node: _Node) -> Level:
    node.keys(("name", "devices", "bytes_per_s", "latency_us"))
    return Level(
        name=node.child("name").text(),
        devices=node.child("devices").count(),
        bytes_per_s=node.child("bytes_per_s").rate(),
        latency_us=node.child("latency_us").time_us(),
    )
