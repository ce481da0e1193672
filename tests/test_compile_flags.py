"""XLA flags, as written by users, become compiler options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.compile.flags import compiler_options
from hloinspect.errors import CompileError

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
