"""XLA flags, as written by users, become compiler options."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.compile.flags import compiler_options, flags_in
from hloinspect.compile.launch import compilation_of
from hloinspect.compile.protocol import StepRequest
from hloinspect.errors import CompileError
from hloinspect.hardware import load_target
from hloinspect.options import CompileOptions

NAMES = st.from_regex(r"xla_[a-z0-9_]{1,30}", fullmatch=True)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--xla_foo=bar", {"xla_foo": "bar"}),
        ("xla_foo=bar", {"xla_foo": "bar"}),
        ("--xla_foo", {"xla_foo": True}),
        ("xla_foo=true", {"xla_foo": True}),
        ("xla_foo=False", {"xla_foo": False}),
        ("xla_foo=", {"xla_foo": ""}),
        ("xla_foo=95", {"xla_foo": "95"}),
        ("xla_foo=a=b,c", {"xla_foo": "a=b,c"}),
    ],
)
def test_a_flag_is_read_in_every_spelling(flag: str, expected: dict[str, object]) -> None:
    assert compiler_options([flag]) == expected


def test_the_last_value_of_a_flag_wins() -> None:
    assert compiler_options(["xla_foo=1", "xla_bar", "--xla_foo=2"]) == {"xla_foo": "2", "xla_bar": True}


@pytest.mark.parametrize("flag", ["", "=", "--", "-xla_foo", "xla foo=1", "--XLA_FOO=1", "1xla"])
def test_what_is_not_a_flag_is_refused_by_name(flag: str) -> None:
    with pytest.raises(CompileError, match="is not an XLA flag"):
        compiler_options([flag])


@given(st.dictionaries(NAMES, st.text(st.characters(exclude_categories=("Cs", "Z", "C")), min_size=1), max_size=5))
def test_names_and_values_come_back_whatever_they_are(options: dict[str, str]) -> None:
    read = compiler_options(f"--{name}={value}" for name, value in options.items())
    assert {name: str(value).lower() for name, value in read.items()} == {n: v.lower() for n, v in options.items()}


def test_flags_of_the_environment_are_those_that_the_module_depends_on(tmp_path: Path) -> None:
    others = "--xla_dump_to=x --xla_cpu_b=2 --xla_force_host_platform_device_count=8"
    text = f"--xla_gpu_a=1 {others} --xla_tpu_c=3 --xla_d='a b'"
    assert flags_in(text, "gpu") == ["--xla_gpu_a=1", "--xla_d=a b"]
    assert flags_in(text, "tpu") == ["--xla_tpu_c=3", "--xla_d=a b"]
    assert flags_in("", "gpu") == []
    (tmp_path / "flags").write_text("--xla_gpu_a=1\n--xla_e\n")
    assert flags_in(str(tmp_path / "flags"), "gpu") == ["--xla_gpu_a=1", "--xla_e"]
    with pytest.raises(CompileError, match="names the file '/nowhere', which cannot be read"):
        flags_in("/nowhere", "gpu")
    with pytest.raises(CompileError, match="XLA_FLAGS cannot be read: No closing quotation"):
        flags_in("--xla_a='", "gpu")


def test_flags_of_the_environment_give_way_to_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_a=1 --xla_gpu_enable_pipelined_all_gather=true")
    target = load_target("h100")
    step, options = StepRequest(step="f.py:step"), CompileOptions(xla_flags=("xla_gpu_pipeline_all_gather=off",))
    compilation = compilation_of(step, target, options)
    assert compilation.xla_flags == ("--xla_gpu_a=1", "xla_gpu_pipeline_all_gather=off")
    assert compilation.outside == ("xla_gpu_a",)
    assert compilation.notes == ("XLA_FLAGS of the environment is in effect, as in a run: --xla_gpu_a=1",)
    monkeypatch.delenv("XLA_FLAGS")
    assert compilation_of(step, target, CompileOptions()).notes == ()
