"""Read what the production run had and a laptop has not: its XLA flags, its autotuning results, its PGLE profile.

With them the module that is checked is the module that is deployed. ``compile/child/tuned.py`` compiles with them and
says what XLA used. No jax.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hloinspect.compile.flags import aliases_of, name_of_flag
from hloinspect.compile.protocol import AutotuneResults, ProductionRun, Profile
from hloinspect.compile.run_flags import RunFlags, read_run_flags
from hloinspect.errors import InputError, UsageError
from hloinspect.options import Production

_MAX_BYTES = 256 << 20

LEGACY, CURRENT = "AutotuneResults", "AutotuneCache"
"""The two messages of XLA's autotuning results (xla/autotune_results.proto, xla/autotune_cache.proto)."""


@dataclass(frozen=True, slots=True)
class AutotuneFile:
    """The content of a file of autotuning results. ``devices`` are the descriptions of GPUs that the older message has
    in plain text."""

    message: str  # LEGACY | CURRENT
    text: bool
    entries: int
    devices: tuple[str, ...]

    @property
    def dnn_version(self) -> str | None:
        """Return the cuDNN that all entries were tuned with, ``9.12.0``: it is part of their key."""
        found = {version for device in self.devices for version in re.findall(r"DNN version: (\d+\.\d+\.\d+)", device)}
        return found.pop() if len(found) == 1 else None


def production_run(production: Production, platform: str, xla_flags: Sequence[str]) -> ProductionRun | None:
    """Return what the production run had, read and validated; None where nothing is given. Its flags are without those
    that the user gives again in ``xla_flags``: the user's own win.

    Raises InputError for a file that is not what it is given as, and UsageError where the target has no such thing.
    """
    if not production:
        return None
    if platform != "gpu" and (production.autotune_results or production.pgle):
        option = "--autotune-results" if production.autotune_results else "--pgle"
        raise UsageError(f"{option} is for GPUs: XLA tunes nothing by running on a {platform.upper()}")
    run = RunFlags("", (), ())
    if production.flags_from is not None:
        run = read_run_flags(production.flags_from)
    own = {alias for flag in xla_flags for alias in aliases_of(name_of_flag(flag))}
    return ProductionRun(
        flags_from=run.origin if production.flags_from is not None else None,
        flags=tuple(flag for flag in run.flags if name_of_flag(flag) not in own),
        left_out=run.left_out,
        autotune_results=_autotune_results(production.autotune_results) if production.autotune_results else None,
        pgle=_profile(production.pgle) if production.pgle else None,
    )


def with_dnn_version(target_config: str, production: ProductionRun | None) -> str:
    """Return the target's configuration with the cuDNN that the autotuning results are of: XLA finds none without."""
    results = production.autotune_results if production else None
    if results is None or not results.dnn_version:
        return target_config
    version = results.dnn_version
    major, minor, patch = version.split(".")
    text = re.sub(r'(?<!\w)dnn_version\s*:\s*"[^"]*"', f'dnn_version: "{version}"', target_config)
    info = f"dnn_version_info {{ major: {major} minor: {minor} patch: {patch} }}"
    return re.sub(r"(?<!\w)dnn_version_info\s*:?\s*\{[^{}]*\}", info, text)


# --- autotuning results ---------------------------------------------------------------------------


def _autotune_results(path: Path) -> AutotuneResults:
    data = _read(path, "--autotune-results")
    found = autotune_file(data, path)
    return AutotuneResults(
        path=str(path),
        file=str(path.absolute()),
        sha256=hashlib.sha256(data).hexdigest(),
        text=found.text,
        message=found.message,
        devices=found.devices,
        dnn_version=found.dnn_version,
    )


def autotune_file(data: bytes, path: Path) -> AutotuneFile:
    """Return what a file of autotuning results holds, text or binary. Raises InputError for anything else, also for a
    file without entries, as XLA writes one where nothing was tuned."""
    text = _as_text(data)
    found = _autotune_text(text) if text is not None else None
    found = found or _autotune_binary(data)
    if found is None:
        raise InputError(f"{path} holds no autotuning results: expected what --xla_gpu_dump_autotune_results_to writes")
    if not found.entries:
        raise InputError(f"{path} is empty: it holds no result of autotuning (a run on the device writes them)")
    return found


def _autotune_text(text: str) -> AutotuneFile | None:
    if not re.match(r"\s*(#[^\n]*\n\s*)*(version\s*:|results\s*:?\s*\{|entries\s*:?\s*\{|\w+_scope\s*:)", text):
        return None
    current = len(re.findall(r"^entries\s*:?\s*\{", text, re.MULTILINE))
    legacy = len(re.findall(r"^results\s*:?\s*\{", text, re.MULTILINE))
    devices = re.findall(r'\bdevice\s*:\s*"((?:[^"\\]|\\.)*)"', text) if legacy else []
    return AutotuneFile(CURRENT if current else LEGACY, True, current or legacy, tuple(dict.fromkeys(devices)))


def _autotune_binary(data: bytes) -> AutotuneFile | None:
    """Read the binary form. AutotuneResults: 4 results {1 device}. AutotuneCache: 3 entries."""
    from hloinspect.profiles.xplane.wire import BYTES, VARINT, WireError, fields

    try:
        top = list(fields(data, 0, len(data)))
        results = [(start, end) for number, wire, _, start, end in top if (number, wire) == (4, BYTES)]
        devices = [
            data[begin:stop].decode("utf-8", "replace")
            for start, end in results
            for number, wire, _, begin, stop in fields(data, start, end)
            if (number, wire) == (1, BYTES)
        ]
    except WireError:
        return None
    kinds = {(number, wire) for number, wire, *_ in top}
    if kinds <= {(1, VARINT), (4, BYTES)}:
        return AutotuneFile(LEGACY, False, len(results), tuple(dict.fromkeys(devices)))
    if kinds <= {(1, BYTES), (2, BYTES), (3, BYTES)}:
        return AutotuneFile(CURRENT, False, sum(number == 3 for number, *_ in top), ())
    return None


# --- profiles -------------------------------------------------------------------------------------


def _profile(path: Path) -> Profile:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".pbtxt", ".pb") and file.is_file())
        if not files:
            raise InputError(f"{path} holds no profile: expected FINGERPRINT.pbtxt or FINGERPRINT.pb")
    else:
        files = [path]
    digest = hashlib.sha256()
    text = False
    for file in files:
        data = _read(file, "--pgle")
        if not path.is_dir():
            costs_of(data, file)  # for its complaints; of a directory only one is used, which the fingerprint names
            text = _as_text(data) is not None
        digest.update(f"{file.name if path.is_dir() else ''}\0{len(data)}\0".encode())
        digest.update(data)
    return Profile(
        path=str(path),
        file=str(path.absolute()),
        sha256=digest.hexdigest(),
        text=text,
        directory=path.is_dir(),
    )


def costs_of(data: bytes, path: Path) -> tuple[str, ...]:
    """Return the names of instructions that a profile (``ProfiledInstructionsProto``, text or binary) has a cost for.
    Raises InputError where it has none: XLA takes what it cannot read for no profile, and says nothing."""
    text = _as_text(data)
    names = re.findall(r'\bname\s*:\s*"((?:[^"\\]|\\.)*)"', text) if text is not None and "costs" in text else []
    names = names or list(_binary_costs(data))
    if not names:
        raise InputError(f'{path} is no PGLE profile: expected costs {{ name: "..." cost_us: ... }}, text or binary')
    return tuple(dict.fromkeys(names))


def _binary_costs(data: bytes) -> Iterator[str]:
    """Yield the names of ProfiledInstructionsProto: 1 costs {1 name, 2 cost_us}, 2 latencies."""
    from hloinspect.profiles.xplane.wire import BYTES, FIXED64, WireError, fields

    try:
        top = list(fields(data, 0, len(data)))
        if not {(number, wire) for number, wire, *_ in top} <= {(1, BYTES), (2, BYTES)}:
            return
        for number, _, _, start, end in top:
            if number == 1:
                inner = list(fields(data, start, end))
                if not {(n, w) for n, w, *_ in inner} <= {(1, BYTES), (2, FIXED64)}:
                    return
                yield from (data[a:b].decode("utf-8", "replace") for n, _, _, a, b in inner if n == 1)
    except WireError:
        return


def _as_text(data: bytes) -> str | None:
    """Return the text of a file that is text: what is not printable occurs in binary messages only."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[\0-\x08\x0e-\x1f]", text) else text


def _read(path: Path, option: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)  # a device has no size, and no end
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror or error}") from None
    if len(data) > _MAX_BYTES:
        raise InputError(f"{option} {path}: too large")
    return data
