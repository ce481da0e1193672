"""Files that people may touch, as they are written, and what can be done to one field of each.

What a field must be is said here by hand, and not taken from the types that the reader goes by.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hloinspect.analyze.inspect import inspect
from hloinspect.gate.baseline import Baseline, load_baseline, to_json
from hloinspect.gate.config import load_gate
from hloinspect.gate.snapshot import snapshot_of
from hloinspect.hardware import load_target, target_names
from hloinspect.inputs.manifest import AutotuneUse, Configuration, FlagsFrom, ProductionUse, ProfileUse
from hloinspect.inputs.manifest import manifest_from_json as _manifest
from hloinspect.placements.flow import requested_in
from hloinspect.plan.axes import load_names
from hloinspect.rules.config import load_choice
from tests.support.gate_samples import FIXTURES
from tests.support.places import ROOT
from tests.support.toml_text import toml_text

Path_ = tuple[str | int, ...]

CONFIGURATION = Configuration(
    compile_options={"memory_fitting_level": "O2"},
    compile_options_sha256="ab",
    jax={"jax_enable_x64": "True"},
    environment={"XLA_FLAGS": "--xla_a=1"},
    libraries={"libtpu": "0.0.50 b6de513893c0"},
    target_config_sha256="cd",
)


@dataclass(frozen=True)
class Kind:
    """A kind of file. Fields are named by patterns of their paths, with ``[]`` for the place in a list and ``*`` for a
    key of a map.

    ``read`` gets the folder of the file and returns what it means, as plain data, or None where that has another form
    than the file. ``nullable`` fields may be null, ``optional`` keys may be absent, ``free`` maps may have any key,
    ``scalars`` may be of any type that is no list or table, and ``closed`` fields are a word of a closed set.
    """

    name: str
    file: str
    write: Callable[[Any], str]
    read: Callable[[Path], Any]
    documents: tuple[Any, ...]
    optional: tuple[str, ...]
    free: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    one_or_many: tuple[str, ...] = ()
    signed: tuple[str, ...] = ()
    has_null: bool = True
    skip: tuple[str, ...] = field(default=())


# ---- baselines


def _baselines() -> tuple[Any, ...]:
    found = []
    for name, target in (("gb200_offload_scan", "gb200"), ("gb200_optimizer", "h100")):
        report = inspect(str(FIXTURES / name / "module.hlo.txt.gz"), target=target).report
        entry = snapshot_of(report, f"train.py:{name}", origin="a/step (folder 0123)")
        made = replace(
            entry.made,
            jax="0.12.0.1",
            jaxlib="0.12.0.1",
            flags=("--xla_a=1",),
            topology="2x2",
            configuration=CONFIGURATION,
        )
        classes = {"matmul": 1.5, "all-gather": 0.25}
        found.append(json.loads(to_json(Baseline(Path("b"), (replace(entry, made=made, classes_ms=classes),)))))
    example = json.loads((ROOT / "examples" / "ci" / "hloinspect-baseline.json").read_text(encoding="utf-8"))
    both = {"schema": found[0]["schema"], "entries": [*found[0]["entries"], *found[1]["entries"]]}
    return (*found, example, both)


def baseline() -> Kind:
    """Return the gate's baseline."""
    place = ("file", "function", "line")
    return Kind(
        name="baseline",
        file="baseline.json",
        write=json.dumps,
        read=lambda folder: json.loads(to_json(load_baseline(folder / "baseline.json"))),
        documents=_baselines(),
        optional=(
            *("entries[].origin", "entries[].made.configuration", "entries[].findings[].subjects"),
            *("entries[].classes_ms", "entries[].classes_ms.*"),
        ),
        free=tuple(
            f"entries[].made.configuration.{name}" for name in ("compile_options", "jax", "environment", "libraries")
        ),
        nullable=(
            *(
                "entries[].origin",
                "entries[].target",
                "entries[].step_ms",
                "entries[].stall_ms",
                "entries[].exposed_ms",
            ),
            *(f"entries[].made.{name}" for name in ("jax", "jaxlib", "flags", "topology", "configuration")),
            *(f"entries[].made.{name}" for name in ("d2h_gbps", "h2d_gbps")),
            *(f"entries[].made.configuration.{name}_sha256" for name in ("compile_options", "target_config")),
            *(f"entries[].memory.{name}" for name in ("device_bytes", "host_bytes")),
            *(f"entries[].transfers[].{name}" for name in ("name", "duration_ms", "cover_ms", "wait_ms", *place)),
            *(f"entries[].findings[].{name}" for name in ("subjects", *place)),
            *(f"entries[].findings[].subjects[].{name}" for name in ("name", "array", *place)),
        ),
        closed=(
            *("schema", "entries[].kind", "entries[].memory.source", "entries[].transfers[].direction"),
            *("entries[].findings[].severity", "entries[].findings[].code", "entries[].rules_not_run[]"),
        ),
    )


# ---- manifests


def _manifests() -> tuple[Any, ...]:
    plain = [
        json.loads((FIXTURES / name / "manifest.json").read_text(encoding="utf-8"))
        for name in ("gb200_offload_scan", "gb200_optimizer", "v6e_offload_scan")
    ]
    whole = copy.deepcopy(plain[1])
    use = ProductionUse(
        FlagsFrom("dump", ("--xla_a=1",), (("xla_dump_to", "output"),)),
        AutotuneUse("results.pbtxt", "ab", 1, 7),
        ProfileUse("profile.pbtxt", "cd", 3, 9),
    )
    whole |= {
        "xla_flags": ["--xla_a=1"],
        "compiler_options": {"xla_a": True, "xla_b": 7, "xla_c": 0.5, "xla_d": "text"},
        "offload_names": plain[0]["offload_names"],
        "settings": {
            **{"library": "MaxText", "version": "0.2.5", "model_name": "default", "remat_policy": "custom"},
            **{"scan_layers": True, "attention": "dot_product", "per_device_batch_size": 2.0},
            **{"max_target_length": 1024, "tensors_on_device": ["out_proj"]},
        },
        "production": asdict(use),
        "compile_notes": ["a note"],
        "cached": True,
        "configuration": asdict(CONFIGURATION),
    }
    whole["versions"]["ptxas"] = "13.0"
    whole["requested"]["dead_policies"] = ["hidden"]
    whole["requested"]["policies"] = [{"name": "hidden", "place": None}]
    return (*plain, json.loads(json.dumps(whole)))


def _read_manifest(folder: Path) -> Any:
    path = folder / "manifest.json"
    manifest = _manifest(path.read_text(encoding="utf-8"), path)
    requested_in(manifest, path)
    return json.loads(manifest.to_json())


def manifest() -> Kind:
    """Return the manifest of a compilation."""
    requested = "requested.requests[]"
    return Kind(
        name="manifest",
        file="manifest.json",
        write=json.dumps,
        read=_read_manifest,
        documents=_manifests(),
        optional=(
            *("settings", "production", "compile_notes", "cached", "requested", "configuration", "versions.ptxas"),
            *("production.flags_from", "production.autotune_results", "production.pgle"),
            *("requested.policies", "requested.dead_policies"),
            *("memory.peak_memory_in_bytes", "memory.generated_code_size_in_bytes"),
            "memory.host_generated_code_size_in_bytes",
        ),
        free=(
            *("compiler_options", "memory.peak_memory_in_bytes", "memory.generated_code_size_in_bytes"),
            "memory.host_generated_code_size_in_bytes",
            *(f"configuration.{name}" for name in ("compile_options", "jax", "environment", "libraries")),
        ),
        nullable=(
            *("configuration", "production.flags_from", "production.autotune_results", "production.pgle"),
            *(f"versions.{name}" for name in ("hloinspect", "jax", "jaxlib", "python", "plugin", "ptxas")),
            *(f"configuration.{name}_sha256" for name in ("compile_options", "target_config")),
            *("production.autotune_results.of", "requested.dead_policies"),
            *(f"offload_names[].{name}" for name in ("file", "line", "column", "function")),
            *(f"settings.{name}" for name in ("version", "model_name", "remat_policy", "scan_layers", "attention")),
            *("settings.per_device_batch_size", "settings.max_target_length"),
            *(f"{requested}.{name}" for name in ("of", "argument", "result", "place", "made")),
            *("requested.names[].place", "requested.policies[].place", "requested.computes[]"),
        ),
        scalars=(
            "compiler_options.*",
            *(f"settings.{name}" for name in ("model_name", "remat_policy", "scan_layers", "attention")),
        ),
        closed=(
            *("schema", "platform", "settings.library", "requested.source"),
            *(f"{requested}.direction", f"{requested}.by", "requested.entry_values[].kind"),
        ),
        signed=(f"{requested}.argument", "requested.entry_values[].number"),
    )


# ---- [tool.hloinspect]


def _projects() -> tuple[Any, ...]:
    example = tomllib.loads((ROOT / "examples" / "ci" / "pyproject.toml").read_text(encoding="utf-8"))
    step = {
        **{"step": "train.py:step", "name": "big", "targets": ["gb200", "h100"], "devices": 8, "topology": "1x2x4"},
        **{"link": "225GB/s", "xla_flags": ["--xla_a=1"], "flags_from": "dump", "autotune_results": "a.pbtxt"},
        **{"pgle": "profile", "module": "jit_step", "budget": ["stall=5%"]},
    }
    table = {
        **{"select": ["HLO1", "HLO3"], "ignore": ["HLO110"], "severity": {"HLO102": "info", "HLO2": "error"}},
        **{"baseline": "b.json", "budget": ["stall=2%", "lost=0"], "step": [step, {"step": "a.hlo", "target": "a100"}]},
        "plan": {"policies": {"mine": "offload:hid/save:qkv"}, "flags": {"cluster": ["--xla_a=1", "--xla_b=x"]}},
    }
    return (example, {"tool": {"hloinspect": table}})


def _read_project(folder: Path) -> Any:
    load_choice(folder)
    load_gate(folder)
    load_names(folder)
    return None


def project() -> Kind:
    """Return the ``[tool.hloinspect]`` of a pyproject.toml."""
    table = "tool.hloinspect"
    keys = ("name", "target", "targets", "devices", "topology", "link", "xla_flags", "flags_from", "budget")
    return Kind(
        name="project",
        file="pyproject.toml",
        write=toml_text,
        read=_read_project,
        documents=_projects(),
        optional=(
            *(f"{table}.{key}" for key in ("select", "ignore", "severity", "baseline", "budget", "step", "plan")),
            *(f"{table}.step[].{key}" for key in (*keys, "autotune_results", "pgle", "module")),
            *(f"{table}.plan.policies", f"{table}.plan.flags"),
        ),
        free=(f"{table}.severity", f"{table}.plan.policies", f"{table}.plan.flags"),
        closed=(f"{table}.severity.*", f"{table}.select[]", f"{table}.ignore[]"),
        one_or_many=(f"{table}.budget", f"{table}.step[].budget"),
        has_null=False,
        skip=(r"project(\..*)?", "tool", table),
    )


# ---- targets


def _targets() -> tuple[Any, ...]:
    specs = ROOT / "hloinspect" / "hardware" / "specs"
    built_in = [tomllib.loads((specs / f"{name}.toml").read_text(encoding="utf-8")) for name in target_names()]
    return (*built_in, {"base": "gb200", "name": "mine", "link": {"d2h_bytes_per_s": 1.7e11, "sharers": 1}})


def target() -> Kind:
    """Return a target's TOML file."""
    figures = r"(.*bytes_per_s|.*bytes|.*_us|vector_flops|peak_flops\.\w+|.*duplex_factor(\.\w+)?)"
    return Kind(
        name="target",
        file="mine.toml",
        write=toml_text,
        read=lambda folder: load_target(str(folder / "mine.toml")) and None,
        documents=_targets(),
        optional=(
            *("name", "aliases", "device_names", "base", "link", "xla_target_config", "xla_topology_name", "notes"),
            *("collective_efficiency", "multiprocessors", "dtype_efficiency", "stand_in", "devices_per_chip"),
            "architecture",
            "fabric",
            *(f"link.{name}" for name in ("host_bytes_per_s", "host_memory_bytes")),
            *(f"link.host_{name}_bytes_per_s" for name in ("d2h", "h2d")),
            *("link.d2h_bytes_per_s", "link.sharers"),  # of the overlay alone
            *(rf"{figures}.{name}" for name in ("estimate", "announced", "low", "high")),
            r".*efficiency(\.\w+)?.estimate",
            *("peak_flops.*", "dtype_efficiency.*"),
        ),
        closed=("platform", "base", "architecture", "fabric"),
        has_null=False,
        one_or_many=(rf"{figures}", r".*efficiency(\.\w+)?"),
    )


def fits(path: Path_, patterns: tuple[str, ...]) -> bool:
    """Return whether one of the patterns names a field. In the patterns of targets there are regular expressions."""
    text = "".join("[]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return any(re.fullmatch(_expression(pattern), text) for pattern in patterns)


def _expression(pattern: str) -> str:
    if "\\" in pattern or "(" in pattern:
        return pattern
    return re.escape(pattern).replace(r"\*", r"[^.\[]+")


def fields_of(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield every field below a value with its path."""
    if path:
        yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in inner:
        yield from fields_of(item, (*path, step))


def with_field(document: Any, path: Path_, value: object) -> Any:
    """Return a copy of a document with another value in a field."""
    changed, inside = _copied(document, path)
    inside[path[-1]] = value
    return changed


def without_field(document: Any, path: Path_) -> Any:
    """Return a copy of a document without a field."""
    changed, inside = _copied(document, path)
    del inside[path[-1]]
    return changed


def with_key(document: Any, path: Path_, key: str) -> Any:
    """Return a copy of a document in which a field has another key."""
    changed, inside = _copied(document, path)
    inside[key] = inside.pop(path[-1])
    return changed


def _copied(document: Any, path: Path_) -> tuple[Any, Any]:
    """Return a document of which what is above a field is copied, and the innermost of that."""
    changed = inside = copy.copy(document)
    for step in path[:-1]:
        inside[step] = copy.copy(inside[step])
        inside = inside[step]
    return changed, inside
