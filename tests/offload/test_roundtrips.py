"""The other end of a host buffer, and work with the host that is no transfer."""

from __future__ import annotations

import pytest

from tests.support.offload_samples import GPU, offload_in

H2D = "(f32[8,64]{1,0}, f32[8,64]{1,0:S(5)}, u32[])"
D2H = "(f32[8,64]{1,0:S(5)}, f32[8,64]{1,0}, u32[])"
HOST = "f32[8,64]{1,0:S(5)}"
DEVICE = "f32[8,64]{1,0}"


def outcomes(*lines: str) -> list[tuple[str, str]]:
    return [(t.direction, t.outcome) for t in offload_in("\n".join(lines)).transfers]


def test_what_is_sent_and_fetched_again_is_a_round_trip() -> None:
    assert outcomes(
        f"%x = {DEVICE} parameter(0)",
        f"%s = {D2H} copy-start(%x)",
        f"%h = {HOST} copy-done(%s)",
        f"%b = {H2D} copy-start(%h)",
        f"ROOT %r = {DEVICE} copy-done(%b)",
    ) == [("d2h", "round trip"), ("h2d", "round trip")]


def test_what_is_fetched_from_an_argument_and_sent_to_a_result_is_said_so() -> None:
    assert outcomes(
        f"%p = {HOST} parameter(0)",
        f"%b = {H2D} copy-start(%p)",
        f"%d = {DEVICE} copy-done(%b)",
        f"%s = {D2H} copy-start(%d)",
        f"%h = {HOST} copy-done(%s)",
        f"ROOT %r = ({HOST}) tuple(%h)",
    ) == [("h2d", "argument"), ("d2h", "result")]


def test_what_is_sent_and_used_by_nothing_is_never_read() -> None:
    assert outcomes(
        f"%x = {DEVICE} parameter(0)",
        f"%s = {D2H} copy-start(%x)",
        f"%h = {HOST} copy-done(%s)",
        f"ROOT %r = ({DEVICE}) tuple(%x)",
    ) == [("d2h", "never read")]


def test_what_is_fetched_from_a_buffer_that_nothing_wrote_is_never_written() -> None:
    assert outcomes(
        f'%a = {HOST} custom-call(), custom_call_target="AllocateBuffer"{GPU}',
        f"%b = {H2D} copy-start(%a)",
        f"ROOT %d = {DEVICE} copy-done(%b)",
    ) == [("h2d", "never written")]


def test_a_copy_within_host_memory_on_the_way_is_no_loose_end() -> None:
    assert outcomes(
        f"%x = {DEVICE} parameter(0)",
        f"%s = {D2H} copy-start(%x)",
        f"%h = {HOST} copy-done(%s)",
        f"%c = {HOST} copy(%h){GPU}",
        f"%b = {H2D} copy-start(%c)",
        f"ROOT %r = {DEVICE} copy-done(%b)",
    ) == [("d2h", "host copy"), ("h2d", "host copy")]


@pytest.mark.parametrize(
    ("line", "kind", "sent", "received"),
    [
        (f'%e = {DEVICE} custom-call(%x), custom_call_target="xla_ffi_python_gpu_callback"', "callback", 2048, 2048),
        (
            f'%e = (({DEVICE}), {DEVICE}, u32[]) custom-call-start(%x), custom_call_target="HostExecute", '
            'async_execution_thread="host"',
            "host_compute",
            2048,
            2048,
        ),
        (f"%e = ({DEVICE}, u32[], token[]) send(%x, %t), channel_id=1, is_host_transfer=true", "send", 2048, 0),
        (f"%e = ({DEVICE}, u32[], token[]) recv(%t), channel_id=2, is_host_transfer=true", "recv", 0, 2048),
        (f"%e = ({DEVICE}, token[]) infeed(%t)", "infeed", 0, 2048),
        ("%e = token[] outfeed(%x, %t)", "outfeed", 2048, 0),
        (f'%e = {DEVICE} custom-call(%x), custom_call_target="annotate_device_placement"', "annotation", 0, 0),
    ],
)
def test_work_with_the_host_is_listed_separately_with_its_bytes(line: str, kind: str, sent: int, received: int) -> None:
    offload = offload_in(f"""
        %x = {DEVICE} parameter(0)
        %t = token[] after-all()
        {line}
        ROOT %r = () tuple()
    """)
    (event,) = offload.host_events
    assert (event.kind, event.to_host_bytes, event.from_host_bytes) == (kind, sent, received)
    assert (event.instruction, event.executions) == ("e", 1)
    assert offload.transfers == ()
