"""Target files: TOML into a :class:`Target`. A built-in target is one file in ``specs/``, and nothing else.

A user's file is checked against the types of ``document``. A built-in one is not: the tests hold it to them, and the
check would cost every command the import of the decoder.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hloinspect.decoding import Fault, decode, parse_toml, read_text, shown
from hloinspect.errors import TargetError, printable
from hloinspect.hardware.architecture import exchanges_of, products_of, sustained_of
from hloinspect.hardware.devices import Declared, target_named
from hloinspect.hardware.target import Figure, HostLink, Level, Range, Target

if TYPE_CHECKING:
    from hloinspect.hardware.document import (
        DuplexTable,
        FigureTable,
        LevelTable,
        LinkTable,
        RangeTable,
        SpreadTable,
        TargetDocument,
    )

_SPECS = Path(__file__).parent / "specs"
_CONFIGS = Path(__file__).parent / "target_configs"

COLLECTIVE_EFFICIENCY = Range(
    0.7, 0.85, 1.0, "estimate: share of the links' rate that a large collective reaches; not measured here", True
)
"""For targets whose file gives none."""


def target_names() -> tuple[str, ...]:
    """Return the names of the built-in targets, sorted."""
    return tuple(sorted(path.stem for path in _SPECS.glob("*.toml")))


def load_target(name_or_path: str) -> Target:
    """Return the target of that name or alias (``gb200``, ``a100``), the one whose device has that name (``NVIDIA
    GB200``), or the one in a file (a path ending in ``.toml``).

    A file may say ``base = "gb200"`` and give only what differs: tables are merged, a figure is replaced as a whole,
    and ``levels`` too. In such a file a figure may be a bare number; its source is then the file.

    Raises TargetError for an unknown name (it says the nearest and all of them), and for a file that cannot be read, is
    not TOML, or has an unknown, missing or impossible value (it names the file and the key).
    """
    if name_or_path.endswith(".toml"):
        return _load_file(Path(name_or_path))
    name = _canonical(name_or_path)
    return _target(_built_in(name), name, f"{name}.toml")


def target_config_text(target: Target) -> str:
    """Return the text of the ``GpuTargetConfigProto`` with which XLA compiles for ``target`` (GPU only).

    Raises TargetError where the target has none, or its file cannot be read.
    """
    if target.xla_target_config is None:
        raise TargetError(f"target {target.name} has no xla_target_config: there is nothing to compile for it with")
    # An absolute path, which a user's file has, replaces the directory.
    path = _CONFIGS / target.xla_target_config
    try:
        return read_text(path)
    except (OSError, ValueError) as exc:
        raise TargetError(f"{target.xla_target_config}: cannot read the XLA target config: {_reason(exc)}") from exc


def target_of_device(name: str, memory_bytes: float | None = None) -> str | None:
    """Return the built-in target of a device, by the name that its driver, XLA or a profiler gives it (``NVIDIA
    GB200``, ``TPU v6 Lite``), or None where no target has it. ``memory_bytes`` is the device's memory, where that is
    known: a device of another size is another machine."""
    return target_named(_declared(), name, memory_bytes) if name.strip() else None


@cache
def _declared() -> tuple[Declared, ...]:
    """Return what the built-in targets say of their devices."""
    found = []
    for name in target_names():
        document = _built_in(name)
        memory = document["hbm_bytes"]
        size = memory["value"] if isinstance(memory, dict) else memory
        found.append(Declared(name, tuple(document.get("device_names", ())), float(size)))
    return tuple(found)


def _canonical(name: str) -> str:
    """Return the name of the built-in target that is meant: by its name, an alias, or the name of its device."""
    wanted = "-".join(name.lower().replace("_", " ").split())
    names = target_names()
    if wanted in names:
        return wanted
    aliases: dict[str, str] = {}
    for own in names:
        aliases |= dict.fromkeys(_built_in(own).get("aliases", ()), own)
    if found := aliases.get(wanted) or target_of_device(name):
        return found
    hint = _hint(wanted, names, aliases)
    raise TargetError(f"unknown target {name!r}: {hint}known are {', '.join(names)}, or a path ending in .toml")


_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "ampere": ("a100-80g", "a100-40g", "a100-pcie"),
    "hopper": ("h100", "h100-pcie", "h100-nvl", "h200", "h20"),
    "blackwell": ("b200", "gb200"),
    "blackwell-ultra": ("b300", "gb300"),
    "grace-blackwell": ("gb200", "gb300"),
    "gh200-96g": ("gh200-480g", "gh200-120g"),
    "mi350": ("mi355x",),
    "v5": ("v5e", "v5p"),
    "tpu": ("v4", "v5e", "v5p", "v6e", "tpu7x"),
}
"""Names of several targets, or of hardware that is only near to one."""

_MAKER = re.compile(r"^(nvidia|amd-instinct|amd|google)-")
_SLICE = re.compile(r"(?P<chip>.+)-\d+")


def _hint(wanted: str, names: Sequence[str], aliases: Mapping[str, str]) -> str:
    """Return the question which target is meant, with a space behind it, or "" where none is near."""
    wanted = _MAKER.sub("", wanted)
    if family := _FAMILIES.get(wanted):
        return f"did you mean {' or '.join(family)}? "
    named_slice = _SLICE.fullmatch(wanted)
    chip = named_slice["chip"] if named_slice else ""
    own = chip if chip in names else aliases.get(chip)
    if own is not None and _built_in(own)["platform"] == "tpu":
        return f"did you mean {own}? (--devices or --topology says how many) "
    nearest = difflib.get_close_matches(wanted, [*names, *aliases], n=1)
    return f"did you mean {nearest[0]}? " if nearest else ""


def _built_in(name: str) -> TargetDocument:
    return cast("TargetDocument", _read(_SPECS / f"{name}.toml"))


def _load_file(path: Path) -> Target:
    from hloinspect.hardware.document import TargetDocument

    written = _read(path)
    if "base" in written:
        written = _with_base(written, path)
    try:
        document = decode(written, TargetDocument, toml=True)
    except Fault as fault:
        raise TargetError(f"{path}: {fault}") from None
    config = document.get("xla_target_config")
    if config is not None and not _is_file(_CONFIGS / config):
        document["xla_target_config"] = str((path.parent / config).resolve())
    return _target(document, document.get("name", path.stem), path.name)


def _with_base(written: dict[str, object], path: Path) -> dict[str, object]:
    """Return a file laid over the built-in target that it names as its base."""
    base = written["base"]
    if not isinstance(base, str):
        raise TargetError(f"{path}: base: expected the name of a target, found {shown(base)}")
    try:
        below = _read(_SPECS / f"{_canonical(base)}.toml")
    except TargetError as error:
        raise TargetError(f"{path}: base: {error}") from None
    below = {key: value for key, value in below.items() if key != "aliases"}
    return _overlay(below, {"title": f"{below['title']}, as changed by {printable(path.name)}"} | written)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


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
        return parse_toml(read_text(path))
    except tomllib.TOMLDecodeError as exc:
        raise TargetError(f"{path}: not valid TOML: {printable(str(exc))}") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise TargetError(f"{path}: cannot read this target file: {_reason(exc)}") from exc


def _reason(exc: Exception) -> str:
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    if isinstance(exc, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return "it is nested too deeply" if isinstance(exc, RecursionError) else str(exc)


# ---- tables into figures


def _target(document: TargetDocument, name: str, file: str) -> Target:
    def figure(given: float | FigureTable | SpreadTable) -> Figure:
        return _figure(given, file)

    def share(given: float | RangeTable) -> Range:
        return _range(given, file)

    link, collective = document.get("link"), document.get("collective_efficiency")
    sustained = sustained_of(document)
    origin = _canonical(document["base"]) if "base" in document else name
    return Target(
        name=name,
        title=document["title"],
        platform=document["platform"],
        peak_flops={dtype: figure(peak) for dtype, peak in document["peak_flops"].items()},
        vector_flops=figure(document["vector_flops"]),
        hbm_bytes=figure(document["hbm_bytes"]),
        hbm_bytes_per_s=figure(document["hbm_bytes_per_s"]),
        launch_us=figure(document["launch_us"]),
        link=None if link is None else _link(link, file),
        levels=tuple(_level(level, file) for level in document["levels"]),
        matmul_efficiency=share(document["matmul_efficiency"]),
        memory_efficiency=share(document["memory_efficiency"]),
        collective_efficiency=COLLECTIVE_EFFICIENCY if collective is None else share(collective),
        xla_target_config=document.get("xla_target_config"),
        xla_topology_name=document.get("xla_topology_name"),
        notes=tuple(document.get("notes", ())),
        multiprocessors=document.get("multiprocessors"),
        dtype_efficiency={dtype: share(given) for dtype, given in document.get("dtype_efficiency", {}).items()},
        stand_in=document.get("stand_in"),
        devices_per_chip=document.get("devices_per_chip", 1),
        products=products_of(document, origin, figure),
        exchanges=exchanges_of(document, origin, figure),
        sustained=None if sustained is None else share(sustained),
        aliases=tuple(document.get("aliases", ())),
        device_names=tuple(document.get("device_names", ())),
    )


def _figure(given: float | FigureTable | SpreadTable, file: str) -> Figure:
    if not isinstance(given, dict):
        return Figure(float(given), f"given in {file}")
    spread = cast("SpreadTable", given)
    return Figure(
        float(spread["value"]),
        spread["source"],
        spread.get("estimate", False),
        spread.get("announced", False),
        low=_maybe_float(spread.get("low")),
        high=_maybe_float(spread.get("high")),
    )


def _maybe_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _range(given: float | RangeTable, file: str) -> Range:
    if not isinstance(given, dict):
        return Range(float(given), float(given), float(given), f"given in {file}")
    low, value, high = float(given["low"]), float(given["value"]), float(given["high"])
    return Range(low, value, high, given["source"], given.get("estimate", False))


def _link(table: LinkTable, file: str) -> HostLink:
    d2h_duplex, h2d_duplex = _duplex(table["duplex_factor"], file)

    def optional(given: float | FigureTable | None) -> Figure | None:
        return None if given is None else _figure(given, file)

    return HostLink(
        d2h_bytes_per_s=_figure(table["d2h_bytes_per_s"], file),
        h2d_bytes_per_s=_figure(table["h2d_bytes_per_s"], file),
        d2h_duplex=d2h_duplex,
        h2d_duplex=h2d_duplex,
        latency_us=_figure(table["latency_us"], file),
        sharers=table["sharers"],
        host_bytes_per_s=optional(table.get("host_bytes_per_s")),
        host_memory_bytes=optional(table.get("host_memory_bytes")),
        efficiency=_range(table["efficiency"], file),
        host_d2h_bytes_per_s=optional(table.get("host_d2h_bytes_per_s")),
        host_h2d_bytes_per_s=optional(table.get("host_h2d_bytes_per_s")),
    )


def _duplex(given: float | DuplexTable, file: str) -> tuple[Figure, Figure]:
    """Return the shares that both directions keep: of one figure for both, or of one for each."""
    if isinstance(given, dict) and "d2h" in given and "h2d" in given:
        return _figure(given["d2h"], file), _figure(given["h2d"], file)
    figure = _figure(cast("float | FigureTable", given), file)
    return figure, figure


def _level(table: LevelTable, file: str) -> Level:
    return Level(
        name=table["name"],
        devices=table["devices"],
        bytes_per_s=_figure(table["bytes_per_s"], file),
        latency_us=_figure(table["latency_us"], file),
    )
