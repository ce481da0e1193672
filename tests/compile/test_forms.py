"""What a step may return, and how it is found. (These call JAX on the CPU; nothing is compiled.)"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
jax = pytest.importorskip("jax", reason="needs the extra hloinspect[cuda]")
jnp = pytest.importorskip("jax.numpy")

from hloinspect.compile.child import names, steps  # noqa: E402  (they import jax)
from hloinspect.inputs.manifest import OffloadName  # noqa: E402

SHAPE = jax.ShapeDtypeStruct((4, 4), "float32")


def product(x: Any) -> Any:
    return x @ x


class Wrapper:
    """As flax's and equinox's: the Lowered is an attribute."""

    def __init__(self, lowered: Any) -> None:
        self.anything, self.lowered = 3, lowered


class SlottedWrapper:
    __slots__ = ("inner",)

    def __init__(self, lowered: Any) -> None:
        self.inner = lowered


class WrappingJit:
    def lower(self, *args: Any) -> Wrapper:
        return Wrapper(jax.jit(product).lower(*args))


@pytest.mark.parametrize(
    "value",
    [
        lambda: jax.jit(product).lower(SHAPE),
        lambda: jax.jit(product).trace(SHAPE),
        lambda: (jax.jit(product), SHAPE),
        lambda: (jax.jit(product), jnp.ones((4, 4))),
        lambda: Wrapper(jax.jit(product).lower(SHAPE)),
        lambda: SlottedWrapper(jax.jit(product).lower(SHAPE)),
        lambda: (WrappingJit(), SHAPE),
    ],
    ids=["lowered", "traced", "tuple of shapes", "tuple of arrays", "wrapper", "slotted wrapper", "tuple of a wrapper"],
)
def test_a_step_may_return_any_of_these(value: Callable[[], Any]) -> None:
    lowered, _ = steps.call_step("f.py:step", value)
    assert isinstance(lowered, jax.stages.Lowered)
    assert "dot_general" in lowered.as_text()


NO_STEPS = [None, 3, (), (3,), "text", product, {"a": 1}]


@pytest.mark.parametrize("value", NO_STEPS, ids=range(len(NO_STEPS)))
def test_anything_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(steps.StepError, match=r"f\.py:step returned .*: a step returns"):
        steps.call_step("f.py:step", lambda: value)


def test_an_nnx_step_is_lowered() -> None:
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    model = nnx.eval_shape(lambda: nnx.Linear(4, 4, rngs=nnx.Rngs(0)))
    lowered, _ = steps.call_step("f.py:step", lambda: nnx.jit(lambda m, x: m(x)).lower(model, SHAPE))
    assert "dot_general" in lowered.as_text()


def test_a_file_is_imported_like_a_script_beside_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", ["/nowhere"])
    monkeypatch.setattr("sys.modules", dict(__import__("sys").modules))
    (tmp_path / "neighbour.py").write_text("VALUE = 7\n")
    (tmp_path / "my-train.py").write_text(
        "import neighbour, dataclasses\n"
        "@dataclasses.dataclass\nclass Config:\n    size: int = neighbour.VALUE\n"
        "class Steps:\n    @staticmethod\n"
        "    def first(optional=None, *args, **kwargs):\n        return Config().size\n"
        "if __name__ == '__main__':\n    raise SystemExit('not a script')\n"
    )
    assert steps.load_step(f"{tmp_path / 'my-train.py'}:Steps.first")() == 7


# --- checkpoint names ------------------------------------------------------------------------------------------------


def _offloading(*offloaded: str) -> Any:
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(offloaded),
        offload_src="device",
        offload_dst="pinned_host",
    )


def _named_layer(x: Any, w: Any) -> Any:
    from jax.ad_checkpoint import checkpoint_name

    x = checkpoint_name(x, "inp")
    first = checkpoint_name(jnp.sin(x @ w), "first")
    second = checkpoint_name(jax.nn.gelu(first @ w), "second")
    return x + second @ w


def _found(policy: Any, loss: Callable[..., Any] | None = None) -> tuple[OffloadName, ...]:
    layer = jax.checkpoint(_named_layer, policy=policy)
    weights = jax.ShapeDtypeStruct((3, 8, 8), "bfloat16")
    scanned = lambda w, x: jax.lax.scan(lambda c, v: (layer(c, v), None), x, w)[0].sum()  # noqa: E731
    step = jax.jit(jax.value_and_grad(loss(layer) if loss else scanned))
    return names.offload_names(step.trace(weights, jax.ShapeDtypeStruct((2, 8), "bfloat16")).jaxpr)


def test_only_names_that_are_offloaded_are_reported() -> None:
    assert _found(jax.checkpoint_policies.save_only_these_names("first")) == ()
    assert _found(_offloading("no such name")) == ()
    assert [entry.name for entry in _found(_offloading("second"))] == ["second"]


def test_a_name_carries_the_shape_and_the_line_of_what_computes_its_value() -> None:
    source = Path(__file__).read_text().splitlines()
    for entry in _found(_offloading("first", "second")):
        assert (entry.dtype, entry.shape, entry.function) == ("bfloat16", (2, 8), "_named_layer")
        assert entry.file == __file__
        call = {"first": "jnp.sin(x @ w)", "second": "jax.nn.gelu(first @ w)"}[entry.name]
        assert entry.line is not None
        assert source[entry.line - 1][entry.column :].startswith(call)


def test_a_name_on_a_layers_input_has_no_line_of_its_own() -> None:
    (entry,) = _found(_offloading("inp"))
    assert (entry.name, entry.file, entry.line) == ("inp", None, None)


def test_names_are_found_inside_conditionals_and_not_repeated_for_unrolled_layers() -> None:
    def unrolled(layer: Any) -> Any:
        def loss(w: Any, x: Any) -> Any:
            for i in range(3):
                x = jax.lax.cond(x[0, 0] > 0, layer, lambda x, w: x, x, w[i])
            return x.sum()

        return loss

    assert [entry.name for entry in _found(_offloading("first"), unrolled)] == ["first"]
