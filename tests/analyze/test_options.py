"""Options are objects that nobody changes; the public verbs keep the keywords that scripts use."""

from __future__ import annotations

import dataclasses
import inspect as python_inspect
from collections.abc import Callable
from pathlib import Path

import pytest

import hloinspect
from hloinspect.analyze.inspect import inspect_input
from hloinspect.analyze.options import JudgeOptions, TraceOptions
from hloinspect.errors import UsageError
from hloinspect.options import CompileOptions, Production
from tests.support.gate_samples import SMALL

COMPILING = {"devices", "topology", "xla_flags", "production", "cache"}
KEYWORDS = {
    "inspect": {"target", "link", "module", "keep", "memory", "against", "rules", "on_progress", *COMPILING},
    "trace": {
        *("target", "link", "devices", "topology", "rules", "on_progress"),
        *("expect", "hlo", "jobs", "scheduler", "allow_broken"),
    },
    "check": {
        *("target", "link", "rules", "name", "name_from", *COMPILING),
        *("budget", "baseline", "update_baseline", "allow_unknown", "hlo"),
    },
    "compile_step": {"out", "timeout_s", "on_progress", *COMPILING},
}


@pytest.mark.parametrize("verb", KEYWORDS)
def test_a_public_verb_keeps_its_keywords(verb: str) -> None:
    function: Callable[..., object] = getattr(hloinspect, verb)
    parameters = python_inspect.signature(function).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == KEYWORDS[verb]


@pytest.mark.parametrize("options", [CompileOptions(), JudgeOptions(), TraceOptions()])
def test_options_are_keyword_only_and_never_changed(options: CompileOptions | JudgeOptions | TraceOptions) -> None:
    name = dataclasses.fields(options)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, name, None)
    with pytest.raises(TypeError):
        type(options)(None)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (CompileOptions(xla_flags=("xla_a=1",)), "--xla-flag changes how a step is compiled"),
        (CompileOptions(keep=Path("kept")), "--keep keeps what compiling a step writes"),
        (CompileOptions(production=Production(pgle=Path("p"))), "--pgle is for compiling a step"),
    ],
)
def test_what_is_compiled_already_refuses_options_of_compiling(
    root: Path, options: CompileOptions, complaint: str
) -> None:
    module = root / "fixtures" / "jax0.12.0.1" / "gb200_save" / "module.hlo.txt.gz"
    with pytest.raises(UsageError, match=complaint):
        inspect_input(str(module), options, JudgeOptions())


@pytest.mark.parametrize("devices", [0, -1, 1.5, True, "8", 10**30])
def test_a_number_of_devices_that_is_none_is_refused_by_every_verb(devices: object, tmp_path: Path) -> None:
    words = r"devices must be a whole number from 1 to 10,000,000, not "
    baseline = tmp_path / "baseline.json"
    with pytest.raises(UsageError, match=words):
        hloinspect.inspect(str(SMALL), target="gb200", devices=devices)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words):
        hloinspect.trace("none.xplane.pb", devices=devices)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words):
        hloinspect.check(SMALL, target="gb200", devices=devices, baseline=baseline, update_baseline=True)  # type: ignore[arg-type]
    assert not baseline.exists()
