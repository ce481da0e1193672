"""The child process of ``compile_step``: the only place that imports jax. Not for users.

    python -m hloinspect.compile.child.main

It reads one line of JSON (the request) from standard input and answers with lines of JSON on standard output:
``{"progress": ...}`` as it goes, and ``{"done": true}`` or ``{"error": ..., "detail": ...}`` at the end. Whatever the
user's code or XLA prints goes to standard error. The files go to the directory that the request names, the manifest
last.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import platform as python_platform
import re
import resource
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from hloinspect._version import __version__
from hloinspect.compile import cache, flags
from hloinspect.compile.child import clients, configuration, libraries, lowering, own_options, toolkit, tuned
from hloinspect.compile.child.job import Job
from hloinspect.compile.child.message import ChildError, one_line
from hloinspect.inputs import manifest as result


def main() -> int:
    """Serve one request; the exit code is 0 whenever an answer was given."""
    request, answers = _take_over_streams()

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    job = Job(request, say=lambda text: answer(progress=text), tell=answer)
    try:
        compile_job(job)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        message = _error_text(job, error)
        answer(error=message, detail="".join(traceback.format_exception(error))[-8000:])
    else:
        answer(done=True)
    sys.stderr.flush()
    os._exit(0)  # compile-only clients have been seen to crash while the interpreter shuts down


def _error_text(job: Job, error: BaseException) -> str:
    """Return the error as one line, with what of the installed libraries may be its cause."""
    if isinstance(error, ChildError):  # it says its cause itself
        return one_line(error)
    return "; ".join([one_line(error), *(note for note in job.notes if result.NOTE_OTHER_RELEASE in note)])


def _take_over_streams() -> tuple[dict[str, Any], IO[str]]:
    """The request and the stream for answers; standard input is empty afterwards, standard output is standard error."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    request: dict[str, Any] = json.loads(requests.readline())

    def die_with_parent() -> None:
        requests.read()  # ends when the parent is gone, even if it was killed
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()
    return request, answers


def compile_job(job: Job) -> None:
    """Compile what the request asks for and write the files of ``hloinspect.inputs.manifest`` to its directory: once,
    or once for each set of flags in ``variants``."""
    job.say("importing jax")
    environ = dict(os.environ)
    with job.timed("import"):
        jax = _import_jax(job.request["platform"])
        job.cuda = _cuda(job)
        devices = _target_devices(job)
    job.before = configuration.Before(environ, dict(os.environ), dict(jax.config.values))
    lowering.keep_jaxprs(job)
    lowering.keep_policy_names(job)
    job.say(f"tracing and lowering {job.request['step'][:60]}")
    with job.timed("trace_and_lower"):
        lowered = lowering.lowered_step(job, devices)
    lowering.note_what_differs(job, lowered)
    stablehlo = lowered.as_text(debug_info=True)
    if "variants" in job.request:
        _compile_variants(job, jax, lowered, stablehlo)
    else:
        _compile_lowered(job, jax, lowered, stablehlo)


def _compile_variants(job: Job, jax: Any, lowered: Any, stablehlo: str) -> None:
    """Compile one lowered step under many sets of flags, and say after each how it went: a set that XLA refuses is no
    reason not to try the others."""
    from hloinspect.compile.child import names

    jaxpr = job.jaxprs.get(id(lowered._lowering))
    job.tell(names=names.checkpoint_names(jaxpr[0]) if jaxpr else [], policies=job.policies)
    for number, variant in enumerate(job.request["variants"]):
        options = {**job.request["compiler_options"], **variant["compiler_options"]}
        request = {**job.request, **variant, "compiler_options": options}
        own = replace(job, request=request, seconds=dict(job.seconds), notes=list(job.notes))
        job.tell(started=number)
        try:
            _compile_lowered(own, jax, lowered, stablehlo)
        except Exception as error:
            job.tell(variant=number, error=_error_text(own, error))
        else:
            job.tell(variant=number)


def _compile_lowered(job: Job, jax: Any, lowered: Any, stablehlo: str) -> None:
    out = Path(job.request["out"])
    given = copy.deepcopy(job.request.get("production"))
    job.request = {**job.request, "production": given}
    key = _learn_configuration(job, jax.__version__, lowered, stablehlo)
    if key and _from_cache(job, key, lowered, stablehlo, out):
        return
    job.say(f"compiling for {job.request['devices']} x {job.request['target']}")
    before = len(job.notes)
    with tempfile.TemporaryDirectory(prefix="hloinspect-") as dump:
        with job.timed("compile"), _with_users_lines(job, lowered, stablehlo):
            compiled = tuned.compile_with(
                given,
                Path(dump),
                lambda more: _compiled(job, lowered, _options(job, dump, more)),
                keeps_dump="xla_dump_to" in job.request["compiler_options"],
            )
        job.say("writing the result")
        if job.request["platform"] == "gpu":
            _copy_thunks(Path(job.request["compiler_options"].get("xla_dump_to", dump)), out)
    tuned.find_profile_use(given, compiled.as_text() if given and given["pgle"] else "")
    job.notes += tuned.notes_of(given)
    job.compile_notes = job.notes[before:]
    lowering.find_offload_names(job, lowered)
    _write_result(job, jax.__version__, stablehlo, compiled, out)
    if key:
        cache.store(Path(job.request["cache"]), key, out)


@contextmanager
def _with_users_lines(job: Job, lowered: Any, stablehlo: str) -> Iterator[None]:
    """Errors of the compiler get the lines that they are about."""
    try:
        yield
    except Exception as error:
        from hloinspect.compile.child import where

        with suppress(Exception):  # the compiler's error is the one to tell of
            lowering.find_offload_names(job, lowered)
            error.users_lines = where.lines_of(str(error), stablehlo, job.requested)  # type: ignore[attr-defined]
        raise


def _learn_configuration(job: Job, jax_version: str, lowered: Any, stablehlo: str) -> str:
    """Note what decides this compilation, and return what it is kept under: "" where nothing is to be kept."""
    assert job.before is not None
    request, options = job.request, _options(job, "the dump", {})
    decided = configuration.decided(request, job.before, lowered, options, stablehlo, job.cuda)
    job.configuration = decided.configuration
    keeps = request.get("cache") and "xla_dump_to" not in request["compiler_options"]  # the cache would give no dump
    if decided.of_key is None:
        if keeps or decided.why_not_kept == configuration.NOTE_UNKNOWN:
            job.note(decided.why_not_kept)
        return ""
    if not keeps:
        return ""
    return cache.key_of(stablehlo, request, _versions(job, jax_version), decided.of_key)


def _from_cache(job: Job, key: str, lowered: Any, stablehlo: str, out: Path) -> bool:
    """Writes the result from an earlier compilation; whether there is one. What is read off the step and not off the
    module (names, notes, the step's own name) is this step's."""
    found = cache.find(Path(job.request["cache"]), key)
    if found is None:
        return False
    try:
        cache.copy_to(found, out)
    except OSError:  # another process has cleared it away
        return False
    job.say("found in the cache")
    job.notes += [note for note in found.manifest.compile_notes if note not in job.notes]
    lowering.find_offload_names(job, lowered)
    _note_lost_offload(job, stablehlo, (out / result.MODULE_TEXT).read_text(encoding="utf-8"))
    use = found.manifest.production
    _note_no_autotuning(job, use.autotune_results is not None and use.autotune_results.missing == 0)
    manifest = json.loads(found.manifest.to_json()) | {
        "step": job.request["step"],
        "seconds": {**job.seconds, "compile": 0.0},
        "offload_names": job.offload_names,
        "requested": job.requested,
        "notes": [*job.request["notes"], *job.notes],
        "settings": job.settings,
        "configuration": job.configuration and asdict(job.configuration),
        "cached": True,
    }
    (out / result.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return True


def _import_jax(platform: str) -> Any:
    try:
        import jax
        import jax.experimental.topologies
    except ImportError as error:
        raise ChildError(
            f"jax cannot be imported ({error}); install it with: pip install 'hloinspect[{clients.EXTRA[platform]}]'"
        ) from error
    import jax._src.source_info_util as source_info_util

    # Our own frames have no place in the module's stack frames.
    source_info_util.register_exclusion(str(Path(__file__).parents[1]))
    return jax


def _cuda(job: Job) -> Path | None:
    if job.request["platform"] != "gpu":
        return None
    try:
        return toolkit.find(job.request["compiler_options"].get(toolkit.OPTION), toolkit.jaxs_folder())
    except toolkit.ToolkitError as error:
        raise ChildError(str(error)) from error


def _target_devices(job: Job) -> list[Any]:
    from hloinspect.compile.child import devices as target_devices
    from hloinspect.compile.child import entry_layouts, kernels

    try:
        devices = clients.target_devices(job.request, job.note)
    except clients.ClientError as error:
        raise ChildError(str(error)) from error
    for note in libraries.other_releases(job.request["platform"]):
        job.note(note)
    cuda = toolkit.option(job.cuda, toolkit.jaxs_folder()) if job.cuda else {}
    target_devices.become_target(devices, job.request["platform"], job.note, cuda, job.say)
    if job.request["platform"] == "gpu":
        kernels.lower_for(devices[0], job.note)
        entry_layouts.keep_memory_kinds()
    return devices


# --- compiling and writing ------------------------------------------------------------------------


def _options(job: Job, dump: str, more: dict[str, Any]) -> dict[str, Any]:
    options = {**job.request["compiler_options"], **more}
    if job.cuda is None:
        return options
    xla_version = (clients.plugin_version(job.request["platform"]) or "").rpartition(" ")[2]
    return own_options.for_gpu(options, dump, xla_version, job.cuda, toolkit.jaxs_folder())


def _compiled(job: Job, lowered: Any, options: dict[str, Any]) -> Any:
    """Compile, with options under the names that this XLA knows, and without asking a device that is not there."""
    from hloinspect.compile.child import kernels

    while True:
        try:
            return lowered.compile(compiler_options=options)
        except Exception as error:
            refused = re.search(r"No such compile option: '(\w+)'", str(error))
            others = flags.renamed(options, refused[1]) if refused else None
            others = others or own_options.without_refused(options, job.request["compiler_options"], error)
            others = others or tuned.without_flag_of_run(job.request, options, error)
            if others is None and (others := kernels.without_cub(error, options)):
                job.note(kernels.NOTE_CUB)
            if others is None:
                raise
            options = others


def _copy_thunks(dump: Path, out: Path) -> None:
    for name in (result.THUNK_SEQUENCE, result.THUNK_METADATA):
        found = sorted(dump.glob(f"*.{name}"), key=lambda path: path.stat().st_mtime_ns)
        if found:
            (out / name).write_bytes(found[-1].read_bytes())


def _write_result(job: Job, jax_version: str, stablehlo: str, compiled: Any, out: Path) -> None:
    text = compiled.as_text()
    module = compiled.runtime_executable().hlo_modules()[0]
    _note_lost_offload(job, stablehlo, text)
    (out / result.MODULE_TEXT).write_text(text, encoding="utf-8")
    (out / result.MODULE_PROTO).write_bytes(module.as_serialized_hlo_module_proto())
    (out / result.STABLEHLO).write_text(stablehlo, encoding="utf-8")
    manifest = _manifest(job, jax_version, compiled, module.name, text)
    (out / result.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _manifest(job: Job, jax_version: str, compiled: Any, module_name: str, text: str) -> dict[str, Any]:
    request = job.request
    results = (request["production"] or {}).get("autotune_results")
    _note_no_autotuning(job, results is not None and results["missing"] == 0)
    return {
        "schema": result.SCHEMA,
        **{
            key: request[key]
            for key in ("step", "target", "platform", "devices", "topology", "xla_flags", "compiler_options")
        },
        "module_name": module_name,
        "module_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "versions": _versions(job, jax_version),
        "memory": _memory(compiled),
        "seconds": job.seconds,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024),
        "offload_names": job.offload_names,
        "requested": job.requested,
        "notes": [*request["notes"], *job.notes],
        "settings": job.settings,
        "compile_notes": job.compile_notes,
        "production": result.production_of(request["production"]),
        "configuration": job.configuration and asdict(job.configuration),
        "cached": False,
    }


def _note_no_autotuning(job: Job, is_tuned: bool) -> None:
    if job.request["platform"] == "gpu" and not is_tuned:
        job.notes.append(result.NOTE_NO_AUTOTUNING)


def _versions(job: Job, jax_version: str) -> dict[str, str | None]:
    versions = {
        "hloinspect": __version__,
        "jax": jax_version,
        "jaxlib": clients.version("jaxlib"),
        "python": python_platform.python_version(),
        "plugin": clients.plugin_version(job.request["platform"]),
    }
    return versions | ({"ptxas": toolkit.release(job.cuda)} if job.cuda else {})


def _memory(compiled: Any) -> dict[str, int]:
    analysis = compiled.memory_analysis()
    return {name: int(getattr(analysis, name)) for name in dir(analysis) if name.endswith("_in_bytes")}


def _note_lost_offload(job: Job, stablehlo: str, text: str) -> None:
    """XLA drops some offloads without a word, as where a D2H and its H2D with no barrier between fold into nothing."""
    annotations = len(re.findall(r'_xla_buffer_placement = "(?:un)?pinned_host"', stablehlo))
    arguments = len(re.findall(r'mhlo\.memory_kind = "(?:un)?pinned_host"', stablehlo))
    layouts = text.partition("\n")[0].count("S(5)")
    if annotations + arguments and "S(5)" not in text:
        job.notes.append(
            f"{result.NOTE_OFFLOAD_GONE}: StableHLO has {annotations} placements on the host and {arguments} arguments "
            f"or results there, the module nothing in host memory"
        )
    elif layouts < arguments:
        job.notes.append(
            f"{result.NOTE_HOST_ARGUMENTS_GONE}: {arguments} were asked for, the module has {layouts} in host memory"
        )


if __name__ == "__main__":
    sys.exit(main())
