"""Which line computes an offloaded value, as the jaxpr shows it: behind calls, constraints and reshapes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow
jax = pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")

from jax.ad_checkpoint import checkpoint_name  # noqa: E402

from hloinspect.compile.child.names import offload_names  # noqa: E402
from hloinspect.inputs.manifest import OffloadName  # noqa: E402

Layer = Callable[[Any], Any]


def entries(layer: Layer) -> tuple[OffloadName, ...]:
    """The entries of ``layer`` in a loss's gradient, with every named value offloaded."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hid", "other"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    kept = jax.checkpoint(layer, policy=policy)
    jaxpr = jax.make_jaxpr(jax.grad(lambda x: kept(x).sum()))(jax.numpy.ones((8, 4)))
    return offload_names(jaxpr)


def line_of(function: Callable[..., Any], words: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if words in line)


def plain(x: Any) -> Any:
    hid = jax.numpy.sin(x)
    return jax.numpy.tanh(checkpoint_name(hid, "hid")) ** 2


def constrained(x: Any) -> Any:
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    hid = jax.numpy.sin(x)
    hid = jax.lax.with_sharding_constraint(hid, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
    hid = hid.reshape(4, 8)
    return jax.numpy.tanh(checkpoint_name(hid, "hid")) ** 2


@jax.jit
def helper(x: Any) -> tuple[Any, Any]:
    return x + 1.0, jax.numpy.cos(x)


def called(x: Any) -> Any:
    _, hid = helper(x * 2.0)
    return jax.numpy.tanh(checkpoint_name(hid, "hid")) ** 2


@jax.jit
def passes_on(x: Any) -> Any:
    return x


def passed_on(x: Any) -> Any:
    hid = passes_on(jax.numpy.sin(x))
    return jax.numpy.tanh(checkpoint_name(hid, "hid")) ** 2


def named_twice(x: Any) -> Any:
    hid = checkpoint_name(jax.numpy.sin(x), "other")
    return jax.numpy.tanh(checkpoint_name(hid, "hid")) ** 2


def given(x: Any) -> Any:
    return jax.numpy.tanh(checkpoint_name(x, "hid")) ** 2


@pytest.mark.parametrize(
    ("layer", "where", "words"),
    [
        (plain, plain, "hid = jax.numpy.sin"),
        (constrained, constrained, "hid = jax.numpy.sin"),
        (called, helper.__wrapped__, "return x + 1.0"),
        (passed_on, passed_on, "passes_on(jax.numpy.sin"),
        (named_twice, named_twice, "jax.numpy.sin"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_line_is_that_of_what_computes_the_value(layer: Layer, where: Callable[..., Any], words: str) -> None:
    (entry,) = [entry for entry in entries(layer) if entry.name == "hid"]
    assert (entry.line, entry.file) == (line_of(where, words), __file__)
    assert entry.dtype == "float32"


def test_an_argument_of_the_layer_has_no_line() -> None:
    (entry,) = entries(given)
    assert (entry.name, entry.line, entry.file) == ("hid", None, None)
