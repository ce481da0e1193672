"""Every form of a host transfer in optimized HLO, and similar instructions that are none (facts: F1 to F12)."""

from __future__ import annotations

import pytest

from tests.support.offload_samples import (
    D2H,
    DS_BODY,
    DS_START,
    DUS_BODY,
    DUS_START,
    GPU,
    H2D,
    SLICE_BYTES,
    SLICE_CONFIG,
    STACK_BYTES,
    moved,
    offload_in,
    only,
    start,
    with_config,
)

ENTRY_STACK = """
%stack = f32[8,64]{1,0:S(5)} parameter(0)
%row = f32[1,64]{1,0} parameter(1)
%i = s32[] parameter(2)
%z = s32[] constant(0)
"""

# ---- F1: copy-start and copy-done


@pytest.mark.parametrize("tile", ["", ":T(8,128)"], ids=["gpu", "tpu"])
def test_a_copy_start_into_host_memory_is_a_transfer_to_the_host(tile: str) -> None:
    host = f"{tile or ':'}S(5)"
    offload = offload_in(f"""
        %x = f32[8,64]{{1,0{tile}}} parameter(0)
        %s = (f32[8,64]{{1,0{host}}}, f32[8,64]{{1,0{tile}}}, u32[]) copy-start(%x){GPU}
        %k = f32[8,64]{{1,0{tile}}} negate(%x)
        ROOT %d = f32[8,64]{{1,0{host}}} copy-done(%s)
    """)
    assert moved(offload) == [(D2H, "dma", True, STACK_BYTES, "s")]
    assert (only(offload).done, only(offload).start_index, only(offload).done_index) == ("d", 1, 3)


def test_a_copy_start_out_of_host_memory_is_a_transfer_to_the_device() -> None:
    """Read a result whose element 0 is the destination and element 1 the source: the reverse of an async-start."""
    offload = offload_in(f"""
        %x = f32[8,64]{{1,0:S(5)}} parameter(0)
        %s = (f32[8,64]{{1,0}}, f32[8,64]{{1,0:S(5)}}, u32[]) copy-start(%x){GPU}
        ROOT %d = f32[8,64]{{1,0}} copy-done(%s)
    """)
    assert moved(offload) == [(H2D, "dma", True, STACK_BYTES, "s")]


@pytest.mark.parametrize("space", ["", "S(1)", "S(2)", "S(6)"])
def test_a_copy_start_between_other_memory_spaces_is_no_transfer(space: str) -> None:
    """Read S(1), the TPU's VMEM, and S(6), its scalar memory. Most copy-starts of a TPU module prefetch into one of
    them."""
    offload = offload_in(f"""
        %x = f32[8,128]{{1,0:T(8,128)}} parameter(0)
        %s = (f32[8,128]{{1,0:T(8,128){space}}}, f32[8,128]{{1,0:T(8,128)}}, u32[]{{:S(2)}}) copy-start(%x)
        ROOT %d = f32[8,128]{{1,0:T(8,128){space}}} copy-done(%s)
    """)
    assert (offload.transfers, offload.host_copies) == ((), ())


def test_a_copy_start_within_host_memory_is_a_host_copy() -> None:
    offload = offload_in(f"""
        %x = f32[8,64]{{1,0:S(5)}} parameter(0)
        %s = (f32[8,64]{{1,0:S(5)}}, f32[8,64]{{1,0:S(5)}}, u32[]) copy-start(%x){GPU}
        ROOT %d = f32[8,64]{{1,0:S(5)}} copy-done(%s)
    """)
    assert offload.transfers == ()
    assert [(c.instruction, c.bytes, c.mechanism) for c in offload.host_copies] == [("s", STACK_BYTES, "dma")]


# ---- F2 and F3: async starts around slices


def _in_async(body: str, root: str) -> str:
    """Return the same fusion as a dump wraps it."""
    shape, parameters = (
        ("f32[8,64]{1,0:S(5)}", ["f32[8,64]{1,0:S(5)}", "f32[1,64]{1,0}", "s32[]", "s32[]"])
        if root == "wrapped_dus"
        else ("f32[1,64]{1,0}", ["f32[8,64]{1,0:S(5)}", "s32[]", "s32[]"])
    )
    lines = [f"  %a{n} = {kind} parameter({n})" for n, kind in enumerate(parameters)]
    operands = ", ".join(f"%a{n}" for n in range(len(parameters)))
    return f"{body}\n%async_computation (a0: f32[8,64]) -> f32[] {{\n" + "\n".join(
        [*lines, f"  ROOT %w = {shape} fusion({operands}), kind=kLoop, calls=%{root}", "}"]
    )


@pytest.mark.parametrize("config", ["", SLICE_CONFIG], ids=["kernel", "copy"])
@pytest.mark.parametrize("spelling", ["as_text", "dump"])
def test_an_async_update_of_a_host_stack_moves_only_its_update(spelling: str, config: str) -> None:
    computations = with_config(DUS_BODY, config) + with_config(DS_BODY, SLICE_CONFIG)
    line = start(DUS_START, "%stack", "%row", "%i", "%z")
    if spelling == "dump":
        computations = with_config(DS_BODY, SLICE_CONFIG) + _in_async(with_config(DUS_BODY, config), "wrapped_dus")
        line = line.replace("fusion-start", "async-start").replace(
            ", kind=kLoop, calls=%wrapped_dus", ", calls=%async_computation"
        )
    done = "async-done" if spelling == "dump" else "fusion-done"
    body = f"{ENTRY_STACK}\n%s = {line}{GPU}\nROOT %d = f32[8,64]{{1,0:S(5)}} {done}(%s)"
    offload = offload_in(body, computations)
    assert moved(offload) == [(D2H, "dma" if config else "kernel", True, SLICE_BYTES, "s")]
    assert str(only(offload).tensor) == "f32[1,64]"
    assert only(offload).done == "d"


@pytest.mark.parametrize("spelling", ["as_text", "dump"])
def test_an_async_slice_of_a_host_stack_moves_only_the_slice(spelling: str) -> None:
    computations = with_config(DS_BODY, SLICE_CONFIG)
    line = start(DS_START, "%stack", "%i", "%z")
    if spelling == "dump":
        computations = _in_async(computations, "wrapped_ds")
        line = line.replace("fusion-start", "async-start").replace(
            ", kind=kLoop, calls=%wrapped_ds", ", calls=%async_computation"
        )
    done = "async-done" if spelling == "dump" else "fusion-done"
    offload = offload_in(f"{ENTRY_STACK}\n%s = {line}{GPU}\nROOT %d = f32[1,64]{{1,0}} {done}(%s)", computations)
    assert moved(offload) == [(H2D, "dma", True, SLICE_BYTES, "s")]


def test_a_done_is_found_behind_updates() -> None:
    line = start(DS_START, "%stack", "%i", "%z")
    shape = line.partition(" fusion-start")[0]
    offload = offload_in(
        f"""{ENTRY_STACK}
        %s = {line}{GPU}
        %u = {shape} fusion-update(%s)
        %v = {shape} fusion-update(%u)
        ROOT %d = f32[1,64]{{1,0}} fusion-done(%v)""",
        with_config(DS_BODY, SLICE_CONFIG),
    )
    assert (only(offload).done, only(offload).done_index) == ("d", 7)


def test_a_start_without_a_done_has_none() -> None:
    line = start(DS_START, "%stack", "%i", "%z")
    offload = offload_in(f"{ENTRY_STACK}\n%s = {line}{GPU}\nROOT %k = f32[] constant(0)", with_config(DS_BODY))
    assert (only(offload).asynchronous, only(offload).done, only(offload).done_index) == (True, None, None)


def test_slices_of_a_tpu_need_no_fusion_around_them() -> None:
    offload = offload_in("""
        %stack = f32[8,64]{1,0:T(8,128)S(5)} parameter(0)
        %row = f32[1,64]{1,0:T(8,128)} parameter(1)
        %i = s32[]{:T(128)} parameter(2)
        %us = ((f32[8,64]{1,0:T(8,128)S(5)}, f32[1,64]{1,0:T(8,128)}, s32[], s32[]), f32[8,64]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) dynamic-update-slice-start(%stack, %row, %i, %i)
        %ud = f32[8,64]{1,0:T(8,128)S(5)} dynamic-update-slice-done(%us)
        %ss = ((f32[8,64]{1,0:T(8,128)S(5)}, s32[], s32[]), f32[1,64]{1,0:T(8,128)}, u32[]{:S(2)}) dynamic-slice-start(%ud, %i, %i), dynamic_slice_sizes={1,64}
        ROOT %sd = f32[1,64]{1,0:T(8,128)} dynamic-slice-done(%ss)
    """)  # noqa: E501
    assert moved(offload) == [(D2H, "dma", True, SLICE_BYTES, "us"), (H2D, "dma", True, SLICE_BYTES, "ss")]


@pytest.mark.parametrize(
    "line",
    [
        "%s = ((f32[8,64]{1,0:T(8,128)}, s32[], s32[]), f32[1,64]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) "
        "slice-start(%x), slice={[0:1], [0:64]}",
        "%s = ((f32[8,64]{1,0}, s32[], s32[]), f32[1,64]{1,0}, u32[]) fusion-start(%x, %i, %i), kind=kLoop, calls=%f",
    ],
    ids=["prefetch into VMEM", "slice within the device"],
)
def test_an_async_slice_within_the_device_is_no_transfer(line: str) -> None:
    body = with_config(DS_BODY, SLICE_CONFIG).replace("%wrapped_ds", "%f").replace(":S(5)", "")
    done = line.partition("=")[2].split("), ")[1].partition(", u32")[0]
    offload = offload_in(
        f"""
        %x = f32[8,64]{{1,0}} parameter(0)
        %i = s32[] parameter(1)
        {line}
        ROOT %d = {done} {"slice-done" if "slice-start" in line else "fusion-done"}(%s)""",
        body,
    )
    assert (offload.transfers, offload.host_copies) == ((), ())


def test_a_large_index_operand_is_never_taken_for_the_update() -> None:
    """Use the parameter that the fusion writes to the stack. The largest operand is a guess for bodies without one."""
    body = """
%f (p0: f32[8,64], p1: f32[512,64], p2: f32[1,64], p3: s32[]) -> f32[8,64] {
  %p0 = f32[8,64]{1,0:S(5)} parameter(0)
  %p1 = f32[512,64]{1,0} parameter(1)
  %p2 = f32[1,64]{1,0} parameter(2)
  %b = f32[1,64]{1,0} bitcast(%p2)
  %p3 = s32[] parameter(3)
  ROOT %dus = f32[8,64]{1,0:S(5)} dynamic-update-slice(%p0, %b, %p3, %p3)
}
"""
    shape = "((f32[8,64]{1,0:S(5)}, f32[512,64]{1,0}, f32[1,64]{1,0}, s32[]), f32[8,64]{1,0:S(5)}, u32[])"
    offload = offload_in(
        f"""{ENTRY_STACK}
        %big = f32[512,64]{{1,0}} parameter(3)
        %s = {shape} fusion-start(%stack, %big, %row, %i), kind=kLoop, calls=%f{GPU}
        ROOT %d = f32[8,64]{{1,0:S(5)}} fusion-done(%s)""",
        body,
    )
    assert only(offload).bytes == SLICE_BYTES


def test_an_async_update_with_a_row_from_host_memory_is_a_host_copy() -> None:
    computations = with_config(DUS_BODY).replace("f32[1,64]{1,0} parameter", "f32[1,64]{1,0:S(5)} parameter")
    line = start(DUS_START, "%stack", "%row", "%i", "%z").replace("f32[1,64]{1,0}", "f32[1,64]{1,0:S(5)}")
    body = f"{ENTRY_STACK}\n%s = {line}{GPU}\nROOT %d = f32[8,64]{{1,0:S(5)}} fusion-done(%s)"
    offload = offload_in(body.replace("%row = f32[1,64]{1,0}", "%row = f32[1,64]{1,0:S(5)}"), computations)
    assert offload.transfers == ()
    assert [(c.instruction, c.bytes) for c in offload.host_copies] == [("s", SLICE_BYTES)]


# ---- F4 and F5: plain copies


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        ("", ":S(5)", [(D2H, "dma", False, STACK_BYTES, "c")]),
        (":S(5)", "", [(H2D, "dma", False, STACK_BYTES, "c")]),
        ("", "", []),
        (":S(5)", ":S(5)", []),
        ("", ":S(1)", []),
    ],
)
def test_a_plain_copy_is_a_synchronous_transfer_where_one_side_is_the_host(
    source: str, destination: str, expected: list[tuple[str, str, bool, int, str]]
) -> None:
    offload = offload_in(f"""
        %x = f32[8,64]{{1,0{source}}} parameter(0)
        ROOT %c = f32[8,64]{{1,0{destination}}} copy(%x){GPU}
    """)
    assert moved(offload) == expected
    assert [c.instruction for c in offload.host_copies] == (["c"] if source == destination == ":S(5)" else [])


# ---- F6: kernels on host memory


def test_a_kernel_that_reads_host_memory_is_a_synchronous_transfer_though_its_line_shows_no_host_memory() -> None:
    offload = offload_in(f"""
        %x = f32[8,64]{{1,0:S(5)}} parameter(0)
        %y = f32[8,64]{{1,0}} parameter(1)
        ROOT %k = f32[8,64]{{1,0}} add(%y, %x){GPU}
    """)
    assert moved(offload) == [(H2D, "kernel", False, STACK_BYTES, "k")]


def test_a_kernel_that_reads_host_memory_out_of_a_tuple_is_found_with_compact_operands() -> None:
    offload = offload_in(f"""
        %t = (s32[], (f32[8,64]{{1,0:S(5)}}, f32[8,64]{{1,0}})) parameter(0)
        %from_device = f32[8,64]{{1,0}} negate(%t#1#1)
        ROOT %from_host = f32[8,64]{{1,0}} negate(%t#1#0){GPU}
    """)
    assert moved(offload) == [(H2D, "kernel", False, STACK_BYTES, "from_host")]


def test_a_fusion_that_takes_a_slice_of_host_memory_reads_only_the_slice() -> None:
    body = f"""{ENTRY_STACK}\nROOT %k = f32[1,64]{{1,0}} fusion(%stack, %i, %z), kind=kLoop, calls=%wrapped_ds{GPU}"""
    offload = offload_in(body, with_config(DS_BODY))
    assert moved(offload) == [(H2D, "kernel", False, SLICE_BYTES, "k")]


def test_a_fusion_that_updates_host_memory_in_place_writes_only_the_update() -> None:
    fusion = "fusion(%stack, %row, %i, %z), kind=kLoop, calls=%wrapped_dus"
    body = f"{ENTRY_STACK}\nROOT %k = f32[8,64]{{1,0:S(5)}} {fusion}{GPU}"
    offload = offload_in(body, with_config(DUS_BODY))
    assert moved(offload) == [(D2H, "kernel", False, SLICE_BYTES, "k")]
    assert str(only(offload).tensor) == "f32[1,64]"
    assert offload.host_copies == ()


def test_a_bare_update_of_host_memory_writes_only_the_update() -> None:
    offload = offload_in(
        f"{ENTRY_STACK}\nROOT %k = f32[8,64]{{1,0:S(5)}} dynamic-update-slice(%stack, %row, %i, %z){GPU}"
    )
    assert moved(offload) == [(D2H, "kernel", False, SLICE_BYTES, "k")]
    assert str(only(offload).tensor) == "f32[1,64]"


def test_a_kernel_with_host_memory_on_both_sides_is_a_host_copy_and_no_transfer() -> None:
    offload = offload_in(f"""
        %x = f32[8,64]{{1,0:S(5)}} parameter(0)
        ROOT %k = f32[8,64]{{1,0:S(5)}} negate(%x){GPU}
    """)
    assert offload.transfers == ()
    assert [(c.instruction, c.bytes, c.mechanism) for c in offload.host_copies] == [("k", 2 * STACK_BYTES, "kernel")]


def test_a_kernel_that_fills_host_memory_writes_all_of_it() -> None:
    offload = offload_in(f"""
        %z = f32[] constant(0)
        ROOT %k = f32[8,64]{{1,0:S(5)}} broadcast(%z), dimensions={{}}{GPU}
    """)
    assert moved(offload) == [(D2H, "kernel", False, STACK_BYTES, "k")]


# ---- F7 to F11, F12: not transfers, and what cannot be followed


def test_a_host_buffer_that_is_only_allocated_moves_nothing() -> None:
    offload = offload_in(f'ROOT %b = f32[8,64]{{1,0:S(5)}} custom-call(), custom_call_target="AllocateBuffer"{GPU}')
    assert (offload.transfers, offload.host_copies, offload.unfollowed) == ((), (), ())


def test_arguments_and_results_in_host_memory_are_listed_with_their_names() -> None:
    offload = offload_in("""
        %p0 = (f32[8,64]{1,0:S(5)}, f32[2]{0}) parameter(0), metadata={op_name="state['mu']"}
        %p1 = f32[4]{0} parameter(1), metadata={op_name="x"}
        %g = f32[8,64]{1,0:S(5)} get-tuple-element(%p0), index=0
        ROOT %r = (f32[4]{0}, f32[8,64]{1,0:S(5)}) tuple(%p1, %g)
    """)
    assert [(v.kind, v.name, v.bytes) for v in offload.host_values] == [
        ("parameter", "state['mu']", STACK_BYTES),
        ("result", "result[1]", STACK_BYTES),
    ]
    assert offload.transfers == ()


@pytest.mark.parametrize(
    "line",
    [
        '%h = ((f32[8,64]{1,0:S(5)}), f32[8,64]{1,0}, u32[]) custom-call-start(%x), async_execution_thread="host", '
        'custom_call_target="HostExecute"',
        '%h = (f32[8,64]{1,0}) custom-call(%x), custom_call_target="xla_ffi_python_gpu_callback"',
        "%h = (f32[8,64]{1,0}, u32[], token[]) send(%x, %t), channel_id=1, is_host_transfer=true, "
        'frontend_attributes={_xla_host_transfer_handler_name="tf_rendezvous"}',
        "%h = ((f32[8,64]{1,0}), token[]) infeed(%t)",
        "%h = token[] outfeed(%x, %t)",
    ],
)
def test_other_ways_to_talk_to_the_host_are_named_and_not_passed_over(line: str) -> None:
    offload = offload_in(f"""
        %x = f32[8,64]{{1,0:S(5)}} parameter(0)
        %t = token[] after-all()
        {line}
        ROOT %r = () tuple()
    """)
    assert offload.unfollowed == ("h",)
    assert offload.transfers == ()


def test_a_send_between_devices_is_not_one_of_them() -> None:
    offload = offload_in("""
        %x = f32[8,64]{1,0} parameter(0)
        %t = token[] after-all()
        ROOT %h = (f32[8,64]{1,0}, u32[], token[]) send(%x, %t), channel_id=1
    """)
    assert offload.unfollowed == ()


def test_an_async_start_of_several_results_in_host_memory_is_named_as_not_followed() -> None:
    results = "(f32[8,64]{1,0}, f32[8,64]{1,0})"
    offload = offload_in(f"""
        %x = f32[8,64]{{1,0:S(5)}} parameter(0)
        %s = ((f32[8,64]{{1,0:S(5)}}), {results}, u32[]) fusion-start(%x), kind=kLoop, calls=%f{GPU}
        ROOT %d = {results} fusion-done(%s)
    """)
    assert offload.unfollowed == ("s",)
