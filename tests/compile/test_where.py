"""The user's line of an error of the compiler, from the StableHLO and from what the step requests."""

from __future__ import annotations

from typing import Any

import pytest

from hloinspect.compile.child.where import lines_of
from hloinspect.placements.stablehlo import placements_of

STABLEHLO = """module @jit_step {
  func.func public @main(%arg0: tensor<4xf32> loc("x")) -> (tensor<4xf32>) {
    %0 = stablehlo.negate %arg0 : tensor<4xf32> loc(#loc7)
    %1 = stablehlo.custom_call @my_kernel(%0) {backend_config = ""} : (tensor<4xf32>) -> tensor<4xf32> loc(#loc8)
    %2 = stablehlo.custom_call @annotate_device_placement(%1) {has_side_effect = true, mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32> loc(#loc9)
    return %2 : tensor<4xf32> loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("lib/python3.13/site-packages/flax/linear.py":20:8 to :44)
#loc2 = loc("train.py":31:4 to :20)
#loc3 = loc("train.py":33:9 to :20)
#loc4 = loc("Dense.__call__"(#loc1))
#loc5 = loc("step"(#loc2))
#loc6 = loc("step"(#loc3))
#loc7 = loc("jit(step)/neg"(#loc10))
#loc8 = loc("jit(step)/ffi_call"(#loc6))
#loc9 = loc("jit(step)/device_put"(#loc6))
#loc10 = loc(callsite(#loc4 at #loc5))
"""  # noqa: E501


def requested(*requests: dict[str, Any]) -> dict[str, Any]:
    none = dict.fromkeys(("of", "argument", "result", "place", "made"))
    no = dict.fromkeys(("counted", "conditional", "constant", "separated", "computed"), False)
    one = {"by": "device_put", "name": "", "dtype": "f32", "shape": [8], "runs": 1, "value": 0, "live": True}
    given = [{**one, **none, **no, **request} for request in requests]
    return {"source": "jaxpr", "requests": given, "entry_values": [], "names": [], "computes": [], "gap": ""}


def place(line: int) -> dict[str, Any]:
    return {"file": "train.py", "line": line, "column": 4, "function": "step"}


def test_an_operations_name_gives_the_users_line_behind_a_librarys() -> None:
    message = 'INTERNAL: failed on %x = f32[4] negate(%p), metadata={op_name="jit(step)/neg" stack_frame_id=5}'
    assert lines_of(message, STABLEHLO, {}) == ["train.py:31, in step"]


def test_a_kernel_that_is_not_there_gives_the_line_that_calls_it() -> None:
    message = "NOT_FOUND: No FFI handler registered for my_kernel on a platform CUDA (canonical cuda)"
    assert lines_of(message, STABLEHLO, {}) == ["train.py:33, in step"]
    assert lines_of("INVALID_ARGUMENT: Custom emitter for my_kernel not found", STABLEHLO, {}) == [
        "train.py:33, in step"
    ]


def test_a_value_returned_from_the_host_gives_the_line_that_put_it_there_and_no_other() -> None:
    message = (
        "E1200: Tensor which is moved to host (starting from custom-call.1) is returned from the entry computation"
    )
    requests = requested({"direction": "d2h", "place": place(7)}, {"direction": "d2h", "result": 0, "place": place(8)})
    assert lines_of(message, STABLEHLO, requests) == ["train.py:8, in step"]


def test_another_trouble_with_host_memory_gives_at_most_three_of_the_lines_that_ask() -> None:
    message = "INTERNAL: Expected instruction to have shape equal to f32[4]{0}, actual shape is f32[4]{0:S(5)}"
    requests = requested(*({"direction": "h2d", "place": place(line)} for line in (1, 1, 2, 3, 4)))
    assert lines_of(message, STABLEHLO, requests) == [f"train.py:{line}, in step" for line in (1, 2, 3)]


@pytest.mark.parametrize("message", ["INTERNAL: something else", 'op_name="jit(step)/unheard_of"', ""])
def test_where_nothing_shows_it_no_line_is_made_up(message: str) -> None:
    assert lines_of(message, STABLEHLO, requested({"direction": "d2h", "place": place(7)})) == []


def test_the_reader_of_stablehlo_knows_the_same_lines() -> None:
    (request,) = placements_of(STABLEHLO).requests
    assert request.place is not None
    assert (request.place.file, request.place.line, request.place.column, request.place.function) == (
        "train.py",
        33,
        9,
        "step",
    )
    assert request.made is not None
    assert request.made.line == 33
    assert (request.result, request.live) == (0, True)
