"""Published measurements beside the predictions of hloinspect. Nothing is compiled: this takes a second.

    python benchmarks/accuracy_published.py

Copies between host and device (nvbandwidth), matrix products and device-memory copies (cuBLASLt, BabelStream), and
collectives (nccl-tests), each taken from a public repository that is named with it. Whole programs are in
accuracy_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accuracy_tables import Row, comparison, five_numbers, versions

from hloinspect.hardware import Target, load_target
from hloinspect.kinds import D2H, H2D
from hloinspect.predict.collective import Collective
from hloinspect.predict.cost import Cost
from hloinspect.predict.link import Link, rates_of
from hloinspect.predict.products import Product
from hloinspect.predict.scenario import Scenario, scenarios

COPY_BYTES = 512 << 20
"""The size of nvbandwidth's buffer (its default is 512 MiB; the H800's log used 64 MiB, where start-up takes 1 %
more)."""

MEGATRON = "NVIDIA/Megatron-LM issue 6491, nvbandwidth"
OCI_GB200 = "oracle-quickstart/oci-gpu-quickstarts, nvidia/GB200/README-GB200.md"
OCI_GB300 = "oracle-quickstart/oci-gpu-quickstarts, nvidia/GB300/README-GB300.md"
AZURE = "Azure/AI-benchmarking-guide, Azure_Results"
A100_DUPLEX = "NVIDIA/nvbandwidth issues 11 and 53"
H800_LOG = "a public nvbandwidth 0.2 log of eight H800 (driver 525.105.17)"


@dataclass(frozen=True, slots=True)
class Copies:
    """Rates of one GPU in GB/s: alone or with all GPUs of a host copying, in one direction or in both at once."""

    target: str
    everyone: bool
    both: bool
    d2h_gbps: float
    h2d_gbps: float
    source: str
    fitted: bool = False
    range_fitted: bool = False


COPIES = (
    Copies("gb200", False, False, 193.5, 200.7, OCI_GB200, range_fitted=True),
    Copies("gb200", False, True, 162.6, 164.8, OCI_GB200, fitted=True),
    Copies("gb200", True, False, 182.1, 168.5, OCI_GB200),
    Copies("gb200", True, True, 81.6, 82.5, OCI_GB200, fitted=True),
    Copies("gb300", False, False, 193.5, 211.5, MEGATRON, fitted=True),
    Copies("gb300", True, False, 182.9, 172.0, MEGATRON),
    Copies("gb300", False, True, 171.1, 171.9, OCI_GB300, fitted=True),
    Copies("gb300", True, True, 90.9, 91.4, OCI_GB300, fitted=True),
    Copies("gh200", False, False, 170.0, 416.0, MEGATRON, range_fitted=True),
    Copies("gh200", True, False, 170.0, 416.0, MEGATRON, range_fitted=True),
    Copies("h100", False, False, 55.1, 55.3, H800_LOG),
    Copies("h100", False, True, 34.5, 52.8, H800_LOG, fitted=True),
    Copies("h100", True, False, 45.0, 55.2, H800_LOG, fitted=True),
    Copies("h100", True, True, 22.5, 33.5, H800_LOG, fitted=True),
    Copies("h200", False, False, 52.0, 52.0, AZURE),
    Copies("a100-80g", False, False, 26.0, 26.3, f"JAX-Toolbox's traces (D2H); {AZURE} (H2D)", fitted=True),
    Copies("a100-80g", False, True, 24.0, 12.5, A100_DUPLEX, fitted=True),
)


@dataclass(frozen=True, slots=True)
class Products:
    """TFLOP/s of cuBLASLt on products m x n x k (:data:`PRODUCT_SHAPES`), in their order."""

    target: str
    dtype: str
    operand_bytes: float
    tflops: tuple[float, ...]
    fitted: bool = False
    range_fitted: bool = False


PRODUCT_SHAPES = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 16384),
    (6144, 12288, 12288),
    (802816, 192, 768),
)
PRODUCTS = (
    Products("a100-80g", "f16", 2, (119.4, 221.8, 228.0, 253.7, 256.5, 250.8, 157.8)),
    Products("h200", "f8e4m3fn", 1, (290.8, 1013.4, 1249.1, 1300.6, 1366.3, 1318.0, 717.5)),
    Products("gb200", "f8e4m3fn", 1, (489.2, 2243.6, 2834.6, 2876.6, 2906.9, 2895.6, 1459.5), fitted=True),
)
DEVICE_COPY_TBPS = (("a100-80g", 1.61, True), ("h200", 4.01, False))
"""The rate of BabelStream's copy, bytes read and written, and whether the target's figure was set from it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of ``bytes`` over ``size`` GPUs, ``near`` of them in one domain, in milliseconds."""

    target: str
    opcode: str
    bytes: int
    size: int
    near: int
    time_ms: float
    source: str


EXCHANGES = (
    Exchange("gb200", "all-reduce", 8 << 30, 4, 4, 19.424, OCI_GB200),
    Exchange("gb200", "all-reduce", 8 << 30, 8, 8, 18.967, OCI_GB200),
    Exchange("gb200", "all-reduce", 8 << 30, 128, 64, 21.313, OCI_GB200),
    Exchange("gb200", "all-reduce", 8 << 30, 192, 64, 22.820, OCI_GB200),
    Exchange("gb200", "all-to-all", 8 << 30, 4, 4, 10.470, OCI_GB200),
    Exchange("gb200", "all-to-all", 8 << 30, 8, 8, 11.426, OCI_GB200),
    Exchange("gb200", "all-to-all", 8 << 30, 64, 64, 13.574, OCI_GB200),
    Exchange("gb200", "all-to-all", 8 << 30, 128, 64, 95.018, OCI_GB200),
    Exchange("gb200", "all-to-all", 8 << 30, 192, 64, 136.749, OCI_GB200),
    Exchange("gb300", "all-reduce", 16 << 30, 64, 64, 36.350, OCI_GB300),
    Exchange("h200", "all-reduce", 8 << 30, 8, 8, 2 * 8.589934592 * 7 / 8 / 479.98 * 1e3, AZURE),
    Exchange("a100-80g", "all-reduce", 8 << 30, 8, 8, 2 * 8.589934592 * 7 / 8 / 231.58 * 1e3, AZURE),
)


def spread(target: Target, devices: int, figure: Callable[[Scenario], float]) -> tuple[float, float, float]:
    """Return a figure under the central scenario, and its least and greatest over all."""
    values = [figure(case) for case in scenarios(target, devices)]
    return values[0], min(values), max(values)


def copy_rate_gbps(
    target: Target, scenario: Scenario, direction: str, both: bool, size_bytes: int = COPY_BYTES
) -> float:
    """Return the GB/s of copies in a direction, one after the other, the other direction idle or always busy."""
    assert target.link is not None
    link = Link(rates_of(target.link, scenario), lambda served: None)
    ticket = 0
    for index in range(4):
        ticket = link.submit(direction, index, size_bytes, 0.0, None)
        if both:
            link.submit(H2D if direction == D2H else D2H, 4 + index, 4 * size_bytes, 0.0, None)
    return 4 * size_bytes / link.finish(ticket) * 1e3


def copy_rows() -> list[Row]:
    """Return the rows of host copies, in GB/s."""
    rows = []
    for item in COPIES:
        target = load_target(item.target)
        assert target.link is not None
        devices = target.link.sharers if item.everyone else 1
        for direction, measured in ((D2H, item.d2h_gbps), (H2D, item.h2d_gbps)):

            def rate(case: Scenario, target: Target = target, way: str = direction, both: bool = item.both) -> float:
                return copy_rate_gbps(target, case, way, both)

            who = "all GPUs" if item.everyone else "one GPU"
            what = f"{item.target}, {direction}, {who}, {'both directions' if item.both else 'one direction'}"
            rows.append(Row(what, "GB/s", measured, *spread(target, devices, rate), item.fitted, item.range_fitted))
    return rows


def product_rows() -> list[Row]:
    """Return the rows of matrix products, in TFLOP/s. Results are taken as bf16."""
    rows = []
    for item in PRODUCTS:
        target = load_target(item.target)
        for (m, n, k), measured in zip(PRODUCT_SHAPES, item.tflops, strict=True):
            flops = 2.0 * m * n * k
            moved = (m * k + k * n) * item.operand_bytes + m * n * 2
            cost = Cost(flops, item.dtype, bytes=int(moved), product=Product(1, m, n, k))

            def rate(case: Scenario, target: Target = target, cost: Cost = cost) -> float:
                return cost.matrix_flops / cost.time_ps(target, case)

            what = f"{item.target}, {item.dtype}, {m} x {n} x {k}"
            rows.append(Row(what, "TFLOP/s", measured, *spread(target, 1, rate), item.fitted, item.range_fitted))
    return rows


def device_copy_rows() -> list[Row]:
    """Return the rows of a copy within device memory, in TB/s read and written."""
    rows = []
    for name, measured, fitted in DEVICE_COPY_TBPS:
        target = load_target(name)
        cost = Cost(bytes=2 << 30)

        def rate(case: Scenario, target: Target = target, cost: Cost = cost) -> float:
            return cost.bytes / cost.time_ps(target, case)

        rows.append(Row(f"{name}, copy", "TB/s", measured, *spread(target, 1, rate), fitted=fitted))
    return rows


def exchange_rows() -> list[Row]:
    """Return the rows of collectives, in milliseconds."""
    rows = []
    for item in EXCHANGES:
        target = load_target(item.target)
        collective = Collective(item.opcode, item.bytes, item.size, item.near)

        def time(case: Scenario, target: Target = target, collective: Collective = collective) -> float:
            return collective.time_ps(target, case.collective_efficiency, case.figures) / 1e9

        where = f"{item.size} GPUs" + (f" in domains of {item.near}" if item.near < item.size else "")
        what = f"{item.target}, {item.opcode} of {item.bytes >> 30} GiB, {where}"
        rows.append(Row(what, "ms", item.time_ms, *spread(target, item.size, time)))
    return rows


def summary(rows: Sequence[Row]) -> str:
    """Return the errors of those predictions that were not fitted."""
    held_out = [row for row in rows if not row.fitted]
    least, _, middle, _, most = five_numbers([row.ratio for row in held_out])
    free = [row for row in held_out if not row.range_fitted]
    return (
        f"Not fitted: {len(held_out)} of {len(rows)}; predicted / measured {least:.2f} to {most:.2f}, "
        f"median {middle:.2f}. Where the range was not fitted either, it holds the measured figure for "
        f"{sum(row.inside for row in free)} of {len(free)}."
    )


def main(write: Callable[[str], None] = print) -> None:
    write(versions() + "\n")
    for title, rows in (
        ("Host copies", copy_rows()),
        ("Matrix products", product_rows()),
        ("Device-memory copies", device_copy_rows()),
        ("Collectives", exchange_rows()),
    ):
        write(f"### {title}\n\n{comparison(rows)}\n\n{summary(rows)}\n")


if __name__ == "__main__":
    main()
