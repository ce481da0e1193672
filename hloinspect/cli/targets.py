"""``hloinspect targets``: the hardware it knows, each figure with its unit and source, estimates marked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

import click

from hloinspect.cli.console import emit, width
from hloinspect.errors import printable
from hloinspect.hardware import Figure, HostLink, Range, Target, load_target, target_names, with_link
from hloinspect.render.terminal.table import Column, Layout, table
from hloinspect.render.terminal.wrap import wrapped

_LIST_SCHEMA = "hloinspect.targets/1"
_ONE_SCHEMA = "hloinspect.target/1"

# One line of `targets NAME`: what, how much with its unit, where from, and whether it is an estimate.
_Row = tuple[str, str, str, bool]

_COLUMNS = (
    Column("target", is_left=True),
    *(Column(head) for head in ("bf16\nTFLOP/s", "HBM\nGB", "HBM\nTB/s", "link d2h\nGB/s", "link h2d\nGB/s")),
    Column("devices\na host"),
    Column("title", is_left=True),
)
_FIGURES = (Column(is_left=True), Column(), Column(is_left=True, least=24, is_wrapped=True))

EPILOG = """\b
Examples:
  hloinspect targets
  hloinspect targets gb200
  hloinspect targets gb200 --format json -o gb200.json
"""


@click.command("targets", epilog=EPILOG)
@click.argument("name", required=False)
@click.option("--link", metavar="RATE", help="Show NAME with this host link: 225GB/s, or d2h=170GB/s,h2d=415GB/s.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of standard output.")
def command(name: str | None, link: str | None, style: str, output: str | None) -> None:
    """Show the hardware that --target knows, or every figure of NAME with its source.

    NAME is a target, an alias of one (a100), the name of its device ("NVIDIA H200"), or your own TOML file. Figures
    marked ~ are estimates: no vendor has published them. Peaks are dense FLOP/s; a link's rate is that of one device,
    in each direction, alone.
    """
    if name is None:
        if link is not None:
            raise click.UsageError("--link needs a NAME", click.get_current_context())
        targets = [load_target(each) for each in target_names()]
        emit(_list_json(targets) if style == "json" else _list_text(targets, width(sys.stdout)), output)
        return
    target = load_target(name)
    if link is not None:
        target = with_link(target, link)
    emit(_one_json(target) if style == "json" else _one_text(target, width(sys.stdout)), output)


def _list_json(targets: list[Target]) -> str:
    return json.dumps({"schema": _LIST_SCHEMA, "targets": [asdict(target) for target in targets]}, indent=2)


def _one_json(target: Target) -> str:
    return json.dumps({"schema": _ONE_SCHEMA, "target": asdict(target)}, indent=2)


def _list_text(targets: list[Target], columns: int) -> str:
    lines = table(_COLUMNS, [_list_row(target) for target in targets], columns, Layout(indent=0))
    lines += ["", click.style("aliases", bold=True)]
    longest = max(len(target.name) for target in targets)
    for target in targets:
        if target.aliases:
            lines += wrapped(f"{target.name:<{longest}}  {', '.join(target.aliases)}", columns, 1, longest + 3)
    return "\n".join([*lines, "", "Every figure with its source: hloinspect targets NAME"])


def _list_row(target: Target) -> tuple[str, ...]:
    link = target.link
    return (
        target.name,
        f"{target.peak_flops['bf16'].value / 1e12:.0f}",
        f"{target.hbm_bytes.value / 1e9:.1f}",
        f"{target.hbm_bytes_per_s.value / 1e12:.2f}",
        "?" if link is None else f"{link.d2h_bytes_per_s.value / 1e9:.1f}",
        "?" if link is None else f"{link.h2d_bytes_per_s.value / 1e9:.1f}",
        "?" if link is None else str(link.sharers),
        target.title,
    )


def _one_text(target: Target, columns: int) -> str:
    rows = list(_rows(target))
    lines = [click.style(target.name, bold=True) + f"   {target.title} ({target.platform})", ""]
    cells = [(what, f"{amount} {'~' if estimate else ' '}", source) for what, amount, source, estimate in rows]
    lines += table(_FIGURES, cells, columns, Layout(indent=0, has_head=False))
    if any(estimate for _, _, _, estimate in rows):
        lines += ["", "~ an estimate: no vendor has published it"]
    for what, names in (("Aliases", target.aliases), ("Its device's names in profiles", target.device_names)):
        lines += ["", *wrapped(f"{what}: {', '.join(map(printable, names))}", columns)] if names else []
    for note in target.notes:
        lines += ["", *wrapped(f"Note: {note}", columns)]
    return "\n".join(lines)


def _rows(target: Target) -> Iterator[_Row]:
    for dtype, peak in target.peak_flops.items():
        yield _figure(f"{dtype} products", peak, 1e12, "TFLOP/s")
    yield _figure("everything else, f32", target.vector_flops, 1e12, "TFLOP/s")
    yield _range("products reach", target.matmul_efficiency)
    for dtype, efficiency in target.dtype_efficiency.items():
        yield _range(f"{dtype} products reach", efficiency)
    for family, products in target.products.items():
        yield _figure(f"{family} products, start", products.start_us, 1.0, "us")
        yield _figure(f"{family}, tiles at work", products.gain, 0.01, "%")
        yield _figure(f"{family}, results written", products.output, 0.01, "%")
    if target.sustained is not None:
        yield _range("of a short run's clock", target.sustained)
    yield _range("collectives reach", target.collective_efficiency)
    for kind, exchange in target.exchanges.items():
        yield _figure(f"{kind}, start", exchange.latency_us, 1.0, "us")
        yield _figure(f"{kind}, rate", exchange.rate, 0.01, "%")
    yield _figure("HBM", target.hbm_bytes, 1e9, "GB")
    yield _figure("HBM bandwidth", target.hbm_bytes_per_s, 1e9, "GB/s")
    yield _range("bandwidth reached", target.memory_efficiency)
    yield _figure("launch of a kernel", target.launch_us, 1.0, "us")
    if target.link is None:
        yield ("host link", "?", "not published: give it with --link", False)
    else:
        yield from _link_rows(target.link)
    for level in target.levels:
        yield _figure(f"{level.name}, each way", level.bytes_per_s, 1e9, "GB/s")
        yield _figure(f"{level.name}, latency", level.latency_us, 1.0, "us")
        yield (f"{level.name}, up to", f"{level.devices} devices", "", False)


def _link_rows(link: HostLink) -> Iterator[_Row]:
    yield _figure("host link, d2h", link.d2h_bytes_per_s, 1e9, "GB/s")
    yield _figure("host link, h2d", link.h2d_bytes_per_s, 1e9, "GB/s")
    yield _range("link's rate reached", link.efficiency)
    yield _figure("d2h with both on", link.d2h_duplex, 0.01, "%")
    yield _figure("h2d with both on", link.h2d_duplex, 0.01, "%")
    yield _figure("latency of a copy", link.latency_us, 1.0, "us")
    yield ("devices on one host", str(link.sharers), "", False)
    if link.host_bytes_per_s is not None:
        yield _figure("host memory bandwidth", link.host_bytes_per_s, 1e9, "GB/s")
    if link.host_d2h_bytes_per_s is not None:
        yield _figure("host memory, d2h alone", link.host_d2h_bytes_per_s, 1e9, "GB/s")
    if link.host_h2d_bytes_per_s is not None:
        yield _figure("host memory, h2d alone", link.host_h2d_bytes_per_s, 1e9, "GB/s")
    if link.host_memory_bytes is not None:
        yield _figure("host memory", link.host_memory_bytes, 1e9, "GB")


def _figure(what: str, figure: Figure, unit: float, name: str) -> _Row:
    amount = f"{_amount(figure.value / unit)} {name}"
    if figure.at("low") < figure.at("high"):
        amount += f" ({_amount(figure.at('low') / unit)} to {_amount(figure.at('high') / unit)})"
    return (what, amount, figure.source, figure.estimate)


def _range(what: str, share: Range) -> _Row:
    amount = f"{_amount(share.value * 100)} %"
    if share.low < share.high:
        amount += f" ({_amount(share.low * 100)} to {_amount(share.high * 100)})"
    return (what, amount, share.source, share.estimate)


def _amount(value: float) -> str:
    """Return four significant digits, without an exponent and without trailing zeros."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
