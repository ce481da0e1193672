"""The child process of a compilation: the only place that imports jax. Not for users.

    python -m hloinspect.compile.child.main

It reads one line (the request) from standard input and answers with lines on standard output, as compile/protocol.py
has them. Whatever the user's code or XLA prints goes to standard error. The files go to the directory that the request
names, the manifest last.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform as python_platform
import re
import resource
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from hloinspect._version import __version__
from hloinspect.compile import cache, flags, protocol
from hloinspect.compile.child import clients, configuration, libraries, lowering, own_options, toolkit, tuned
from hloinspect.compile.child.jax_types import Compiled, Device, Lowered, Module
from hloinspect.compile.child.job import Job
from hloinspect.compile.child.message import ChildError, one_line
from hloinspect.compile.flags import Option
from hloinspect.compile.protocol import CompileOne, FlagSet, Message, Request
from hloinspect.inputs import manifest
from hloinspect.placements.requested import HOST_KIND, TO_HOST


def main() -> int:
    """Serve one request; the exit code is 0 whenever an answer was given."""
    request, stream = _take_over_streams()
    own_pid = os.getpid()

    def send(message: Message) -> None:
        if os.getpid() == own_pid:  # a process that the step's code forks has the stream too, and may end first
            protocol.send(message, stream)

    job = Job(request.compilation, send)
    try:
        serve(request, job)
    except BaseException as error:
        detail = "".join(traceback.format_exception(error))[-8000:]
        send(protocol.Failed(error=_error_text(job, error), detail=detail))
    else:
        send(protocol.Done())
    sys.stderr.flush()
    os._exit(0)  # compile-only clients have been seen to crash while the interpreter shuts down


def _error_text(job: Job, error: BaseException) -> str:
    """Return the error as one line, with what of the installed libraries may be its cause."""
    if isinstance(error, ChildError):  # it says its cause itself
        return one_line(error)
    return "; ".join([one_line(error), *(note for note in job.notes if manifest.NOTE_OTHER_RELEASE in note)])


def _take_over_streams() -> tuple[Request, IO[str]]:
    """Return the request and the stream for messages. Standard input is empty afterwards, and standard output goes to
    standard error."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    request = protocol.read_request(requests.readline())

    def die_with_parent() -> None:
        requests.read()  # ends when the parent is gone, even if it was killed
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()
    return request, messages


def serve(request: Request, job: Job) -> None:
    """Compile what is requested and write the files of ``hloinspect.inputs.manifest``: once, or for each set of
    flags."""
    compilation = request.compilation
    job.say("importing jax")
    environ = dict(os.environ)
    with job.timed("import"):
        jax = _import_jax(compilation.platform)
        job.cuda = _cuda(job)
        devices = _target_devices(job)
    job.before = configuration.Before(environ, dict(os.environ), dict(jax.config.values))
    lowering.keep_jaxprs(job)
    lowering.keep_policy_names(job)
    job.say(f"tracing and lowering {compilation.step.step[:60]}")
    with job.timed("trace_and_lower"):
        lowered = lowering.lowered_step(job, devices)
    lowering.note_what_differs(job, lowered)
    program = _Program(lowered, lowered.as_text(debug_info=True), jax.__version__)
    if isinstance(request, CompileOne):
        _compile_lowered(job, program, Path(request.out))
    else:
        _compile_flag_sets(job, program, request.flag_sets)


@dataclasses.dataclass(frozen=True, slots=True)
class _Program:
    """A step as JAX has lowered it, and its text."""

    lowered: Lowered
    stablehlo: str
    jax_version: str


def _compile_flag_sets(job: Job, program: _Program, flag_sets: tuple[FlagSet, ...]) -> None:
    """Compile one lowered step under many sets of flags, and say after each how it went: a set that XLA refuses is no
    reason not to try the others."""
    from hloinspect.compile.child import names

    jaxpr = job.jaxprs.get(id(program.lowered._lowering))
    found = names.checkpoint_names(jaxpr[0]) if jaxpr else ()
    job.send(protocol.Lowered(names=tuple(found), policies=tuple(job.policies)))
    for number, flag_set in enumerate(flag_sets):
        own = _job_of(job, flag_set)
        job.send(protocol.Started(number=number))
        try:
            _compile_lowered(own, program, Path(flag_set.out))
        except Exception as error:
            job.send(protocol.Refused(number=number, error=_error_text(own, error)))
        else:
            job.send(protocol.Compiled(number=number))


def _job_of(job: Job, flag_set: FlagSet) -> Job:
    """Return the job for one set of flags, with notes and times of its own."""
    options = {**job.compilation.compiler_options, **flag_set.compiler_options}
    compilation = replace(job.compilation, xla_flags=flag_set.xla_flags, compiler_options=options)
    return dataclasses.replace(job, compilation=compilation, seconds=dict(job.seconds), notes=list(job.notes))


def _compile_lowered(job: Job, program: _Program, out: Path) -> None:
    key = _learn_configuration(job, program)
    if key and _from_cache(job, key, program, out):
        return
    compilation = job.compilation
    job.say(f"compiling for {compilation.devices} x {compilation.target}")
    before = len(job.notes)
    with tempfile.TemporaryDirectory(prefix="hloinspect-") as dump:
        with job.timed("compile"), _with_users_lines(job, program):
            compiled, autotuned = tuned.compile_with(
                compilation.production,
                Path(dump),
                lambda more: _compiled(job, program.lowered, _options(job, dump, more)),
                keeps_dump="xla_dump_to" in compilation.compiler_options,
            )
        job.say("writing the result")
        if compilation.platform == "gpu":
            _copy_thunks(Path(str(job.compilation.compiler_options.get("xla_dump_to", dump))), out)
    given = job.compilation.production  # without the flags that XLA has refused
    profile = tuned.profile_use(given, compiled.as_text()) if given and given.pgle else None
    job.production = tuned.production_use(given, autotuned, profile)
    job.notes += tuned.notes_of(given, job.production)
    job.compile_notes = tuple(job.notes[before:])
    lowering.find_offload_names(job, program.lowered)
    _write_result(job, program, compiled, out)
    if key and compilation.cache:
        cache.store(Path(compilation.cache), key, out)


@contextmanager
def _with_users_lines(job: Job, program: _Program) -> Iterator[None]:
    """Add to an error of the compiler the lines that it is about."""
    try:
        yield
    except Exception as error:
        from hloinspect.compile.child import where

        with suppress(Exception):  # the compiler's error is the one to report
            lowering.find_offload_names(job, program.lowered)
            lines = where.lines_of(str(error), program.stablehlo, job.requested)
            error.users_lines = lines  # type: ignore[attr-defined]
        raise


def _learn_configuration(job: Job, program: _Program) -> str:
    """Note what decides this compilation, and return what it is kept under: "" where nothing is to be kept."""
    assert job.before is not None
    compilation, options = job.compilation, _options(job, "the dump", {})
    decided = configuration.decided(compilation, job.before, program.lowered, options, program.stablehlo, job.cuda)
    job.configuration = decided.configuration
    keeps = compilation.cache and "xla_dump_to" not in compilation.compiler_options  # the cache would give no dump
    if decided.of_key is None:
        if keeps or decided.why_not_kept == configuration.NOTE_UNKNOWN:
            job.note(decided.why_not_kept)
        return ""
    if not keeps:
        return ""
    return cache.key_of(program.stablehlo, compilation, _versions(job, program.jax_version), decided.of_key)


def _from_cache(job: Job, key: str, program: _Program, out: Path) -> bool:
    """Write the result from an earlier compilation, and return whether there is one.

    What is read off the step and not off the module (names, notes, the step's own name) is this step's.
    """
    found = cache.find(Path(job.compilation.cache or ""), key)
    if found is None:
        return False
    try:
        cache.copy_to(found, out)
    except OSError:  # another process has cleared it away
        return False
    job.say("found in the cache")
    job.notes += [note for note in found.manifest.compile_notes if note not in job.notes]
    lowering.find_offload_names(job, program.lowered)
    module_text = (out / manifest.MODULE_TEXT).read_text(encoding="utf-8")
    job.notes += notes_of_lost_offload(program.stablehlo, module_text)
    job.notes += _notes_of_autotuning(job, found.manifest.production)
    _write_manifest(
        dataclasses.replace(
            found.manifest,
            step=job.compilation.step.step,
            seconds={**job.seconds, "compile": 0.0},
            offload_names=job.offload_names,
            requested=job.requested,
            notes=(*job.compilation.notes, *job.notes),
            settings=job.settings,
            configuration=job.configuration,
            cached=True,
        ),
        out,
    )
    return True


def _import_jax(platform: str) -> Module:
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
    if job.compilation.platform != "gpu":
        return None
    given = job.compilation.compiler_options.get(toolkit.OPTION)
    try:
        return toolkit.find(None if given is None else str(given), toolkit.jaxs_folder())
    except toolkit.ToolkitError as error:
        raise ChildError(str(error)) from error


def _target_devices(job: Job) -> list[Device]:
    from hloinspect.compile.child import devices as target_devices
    from hloinspect.compile.child import entry_layouts, kernels

    platform = job.compilation.platform
    try:
        devices = clients.target_devices(job.compilation, job.note)
    except clients.ClientError as error:
        raise ChildError(str(error)) from error
    for note in libraries.other_releases(platform):
        job.note(note)
    cuda = toolkit.option(job.cuda, toolkit.jaxs_folder()) if job.cuda else {}
    target_devices.become_target(devices, platform, job.note, cuda, job.say)
    if platform == "gpu":
        kernels.lower_for(devices[0], job.note)
        entry_layouts.keep_memory_kinds()
    return devices


# --- compiling and writing ------------------------------------------------------------------------


def _options(job: Job, dump: str, more: Mapping[str, Option]) -> dict[str, Option]:
    options = {**job.compilation.compiler_options, **more}
    if job.cuda is None:
        return options
    xla_version = (clients.plugin_version(job.compilation.platform) or "").rpartition(" ")[2]
    return own_options.for_gpu(options, dump, xla_version, job.cuda, toolkit.jaxs_folder())


def _compiled(job: Job, lowered: Lowered, options: Mapping[str, Option]) -> Compiled:
    """Compile, with options under the names that this XLA knows, and without a query to a device that is not there."""
    from hloinspect.compile.child import kernels

    while True:
        try:
            return lowered.compile(compiler_options=options)
        except Exception as error:
            refused = re.search(r"No such compile option: '(\w+)'", str(error))
            others = flags.renamed(options, refused[1]) if refused else None
            others = others or own_options.without_refused(options, job.compilation.compiler_options, error)
            if others is None and (without := tuned.without_flag_of_run(job.compilation, options, error)) is not None:
                job.compilation, others = without
            if others is None and (others := kernels.without_cub(error, options)):
                job.note(kernels.NOTE_CUB)
            if others is None:
                raise
            options = others


def _copy_thunks(dump: Path, out: Path) -> None:
    for name in (manifest.THUNK_SEQUENCE, manifest.THUNK_METADATA):
        found = sorted(dump.glob(f"*.{name}"), key=lambda path: path.stat().st_mtime_ns)
        if found:
            (out / name).write_bytes(found[-1].read_bytes())


def _write_result(job: Job, program: _Program, compiled: Compiled, out: Path) -> None:
    text = compiled.as_text()
    module = compiled.runtime_executable().hlo_modules()[0]
    job.notes += notes_of_lost_offload(program.stablehlo, text)
    job.notes += _notes_of_autotuning(job, job.production)
    (out / manifest.MODULE_TEXT).write_text(text, encoding="utf-8")
    (out / manifest.MODULE_PROTO).write_bytes(module.as_serialized_hlo_module_proto())
    (out / manifest.STABLEHLO).write_text(program.stablehlo, encoding="utf-8")
    compilation = job.compilation
    _write_manifest(
        manifest.Manifest(
            schema=manifest.SCHEMA,
            step=compilation.step.step,
            target=compilation.target,
            platform=compilation.platform,
            devices=compilation.devices,
            topology=compilation.topology,
            xla_flags=compilation.xla_flags,
            compiler_options=compilation.compiler_options,
            module_name=module.name,
            module_sha256=hashlib.sha256(text.encode()).hexdigest(),
            versions=_versions(job, program.jax_version),
            memory=_memory(compiled),
            seconds=job.seconds,
            peak_rss_bytes=_peak_rss_bytes(),
            offload_names=job.offload_names,
            requested=job.requested,
            notes=(*compilation.notes, *job.notes),
            settings=job.settings,
            compile_notes=job.compile_notes,
            production=job.production,
            configuration=job.configuration,
            cached=False,
        ),
        out,
    )


def _write_manifest(written: manifest.Manifest, out: Path) -> None:
    (out / manifest.MANIFEST).write_text(written.to_json(), encoding="utf-8")


def _peak_rss_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _notes_of_autotuning(job: Job, use: manifest.ProductionUse) -> list[str]:
    """Return a note where a kernel may differ from the deployed one, because XLA could not tune it."""
    is_tuned = use.autotune_results is not None and use.autotune_results.missing == 0
    return [manifest.NOTE_NO_AUTOTUNING] if job.compilation.platform == "gpu" and not is_tuned else []


def _versions(job: Job, jax_version: str) -> manifest.Versions:
    versions: manifest.Versions = {
        "hloinspect": __version__,
        "jax": jax_version,
        "jaxlib": clients.version("jaxlib"),
        "python": python_platform.python_version(),
        "plugin": clients.plugin_version(job.compilation.platform),
    }
    if job.cuda:
        versions["ptxas"] = toolkit.release(job.cuda)
    return versions


def _memory(compiled: Compiled) -> dict[str, int]:
    analysis = compiled.memory_analysis()
    return {name: int(getattr(analysis, name)) for name in dir(analysis) if name.endswith("_in_bytes")}


def notes_of_lost_offload(stablehlo: str, text: str) -> list[str]:
    """Return a note where the module keeps less in host memory than was requested: XLA drops some offloads without a
    word, as where a D2H and its H2D with no barrier between fold into nothing."""
    annotations = len(TO_HOST.findall(stablehlo))
    arguments = len(HOST_KIND.findall(stablehlo))
    layouts = text.partition("\n")[0].count("S(5)")
    if annotations + arguments and "S(5)" not in text:
        return [
            f"{manifest.NOTE_OFFLOAD_GONE}: StableHLO has {annotations} placements on the host and {arguments} "
            f"arguments or results there, the module nothing in host memory"
        ]
    if layouts < arguments:
        return [
            f"{manifest.NOTE_HOST_ARGUMENTS_GONE}: {arguments} were requested, the module has {layouts} in host memory"
        ]
    return []


if __name__ == "__main__":
    sys.exit(main())
