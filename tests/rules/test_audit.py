"""Rules HLO309 and HLO310: requested placements that are gone, and transfers that nothing requests."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.compile.child.policies import MadePolicy, names_in_use, names_of_dead
from hloinspect.placements.requested import Requested
from hloinspect.report.schema import Report
from hloinspect.rules.engine import run_rules
from hloinspect.rules.evidence import Evidence
from tests.support.rules_samples import codes, finding, fixture, judged


def put(out: str, value: str, kind: str, shape: str) -> str:
    attributes = f'{{_xla_buffer_placement = "{kind}"}}'
    return (
        f"    %{out} = stablehlo.custom_call @annotate_device_placement(%{value}) {{has_side_effect = true, "
        f"mhlo.frontend_attributes = {attributes}}} : (tensor<{shape}>) -> tensor<{shape}>\n"
    )


def round_trip(number: int, shape: str) -> str:
    """Return a copy to the host, over a barrier, and back."""
    return (
        put(f"h{number}", "x", "pinned_host", shape)
        + f"    %b{number} = stablehlo.optimization_barrier %h{number} : tensor<{shape}>\n"
        + put(f"d{number}", f"b{number}", "device", shape)
    )


def requested(folder: Path, layers: int, shape: str, *, used: bool = True) -> Report:
    """Return the report on the unrolled offload (a round trip for each of its layers) beside a program that requests
    this many of them."""
    module = gzip.decompress(fixture("gb200_offload_unrolled").read_bytes()).decode()
    (folder / "step.hlo").write_text(module)
    body = "".join(round_trip(number, shape) for number in range(layers))
    values = ", ".join(f"%d{n}" if used else "%x" for n in range(layers)) or "%x"
    (folder / "step.stablehlo").write_text(
        f"module @m {{\n  func.func public @main(%arg0: tensor<f32>) -> (tensor<f32>) {{\n"
        f"    %x = stablehlo.negate %arg0 : tensor<f32>\n{body}    return {values} : tensor<f32>\n  }}\n}}\n"
    )
    return inspect(str(folder / "step.hlo"), target="gb200").report


def shape_and_layers() -> tuple[str, int]:
    report = inspect(str(fixture("gb200_offload_unrolled")), target="gb200").report
    sent = [transfer for transfer in report.transfers if transfer.direction == "d2h"]
    assert report.audit is not None
    assert report.audit.requested_from is None  # a module alone does not have the requested placements
    assert {"HLO309", "HLO310"} <= {rule.code for rule in report.rules_not_run}
    (tensor,) = {transfer.tensor for transfer in sent}
    return "x".join(map(str, tensor.shape)) + "xbf16", len(sent)


def test_a_requested_placement_that_is_there_is_no_finding(tmp_path: Path) -> None:
    shape, layers = shape_and_layers()
    found = codes(requested(tmp_path, layers, shape))
    assert not {"HLO309", "HLO310"} & found


def test_a_requested_layer_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    shape, layers = shape_and_layers()
    report = requested(tmp_path, layers + 1, shape)
    assert "HLO310" not in codes(report)
    lost = [each for each in report.findings if each.code == "HLO309"]
    assert {each.severity for each in lost} == {"error"}
    assert all("none of the known reasons fits" in each.message for each in lost)
    assert all("hloinspect passes" in each.remedy for each in lost)


def test_what_nothing_needs_is_a_warning(tmp_path: Path) -> None:
    _, layers = shape_and_layers()
    report = requested(tmp_path, layers, "3xf32", used=False)
    assert {each.severity for each in report.findings if each.code == "HLO309"} == {"warning"}


def test_transfers_that_nothing_requests_are_one_finding_with_all_of_them(tmp_path: Path) -> None:
    shape, layers = shape_and_layers()
    report = requested(tmp_path, layers - 1, shape)
    reported = finding(report, "HLO310")
    assert (reported.severity, len(reported.transfers)) == ("warning", 2)
    assert report.audit is not None
    assert sorted(reported.transfers) == sorted(report.audit.unexplained)
    assert "HLO309" not in codes(report)


def test_an_argument_that_is_not_in_host_memory_as_requested_is_named(tmp_path: Path) -> None:
    (tmp_path / "step.hlo").write_bytes(gzip.decompress(fixture("gb200_save").read_bytes()))
    (tmp_path / "step.stablehlo").write_text(
        'module @m {\n  func.func public @main(%arg0: tensor<4xf32> {mhlo.memory_kind = "pinned_host"} loc("momentum"),'
        ' %arg1: tensor<4xf32> {mhlo.memory_kind = "device"} loc("x")) -> (tensor<4xf32>) {\n'
        "    return %arg1 : tensor<4xf32>\n  }\n}\n"
    )
    report = inspect(str(tmp_path / "step.hlo"), target="gb200").report
    assert report.audit is not None
    (entry,) = report.audit.entries
    assert (entry.kind, entry.name, entry.outcome, entry.cause) == ("argument", "momentum", "dropped", "memory kind")
    reported = finding(report, "HLO304")
    assert "(not momentum)" in reported.message
    assert "HLO309" not in codes(report)


# ---- policies


def test_a_policy_is_dead_where_it_is_in_use_and_not_one_of_its_names_is_offloaded() -> None:
    used, half, unused = (MadePolicy(frozenset(names)) for names in (("a", "b"), ("c", "d"), ("e",)))
    for each in (used, half):
        assert each.noting(lambda prim, **params: (prim, params))("name", name="a") == ("name", {"name": "a"})
    assert names_of_dead([used, half, unused], {"c", "x"}) == ["a", "b"]
    assert names_of_dead([used, half, unused], {"b", "d"}) == []
    assert names_in_use([used, half, unused]) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("dead", "severity"),
    [(("hidden",), "error"), ((), "warning"), (None, "error")],  # None: an older manifest, and no policy offloads
)
def test_a_dead_policy_is_an_error_beside_other_placements(
    dead: tuple[str, ...] | None, severity: str, tmp_path: Path
) -> None:
    shape, layers = shape_and_layers()
    requested(tmp_path, layers, shape)
    request = Requested(to_host=layers, to_device=layers, arguments=0, results=0, unmatched=("hidden",), dead=dead)
    reported = finding(judged(tmp_path / "step.hlo", "gb200", requested=request), "HLO303")
    assert (reported.severity, reported.evidence["dead"]) == (severity, severity == "error")


def test_placements_by_a_policy_that_have_no_name_leave_it_open_whether_it_is_dead(tmp_path: Path) -> None:
    """Use jax_remat3: no name is in the jaxpr, and the values are offloaded nevertheless."""
    shape, layers = shape_and_layers()
    requested(tmp_path, layers, shape)
    request = Requested(to_host=layers, to_device=layers, arguments=0, results=0, unmatched=("hid",), dead=("hid",))
    found = inspect(str(tmp_path / "step.hlo"), target="gb200")
    assert found.report.audit is not None

    def severity_with(name: str | None) -> str:
        assert found.report.audit is not None
        entries = tuple(dataclasses.replace(e, by="policy", name=name) for e in found.report.audit.entries)
        report = dataclasses.replace(found.report, audit=dataclasses.replace(found.report.audit, entries=entries))
        return finding(run_rules(Evidence(report, found.offload, requested=request)), "HLO303").severity

    assert severity_with(None) == "warning"
    assert severity_with("other") == "error"
