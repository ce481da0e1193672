"""``hloinspect cache``: the compilations that are kept."""

from __future__ import annotations

import click

from hloinspect.cli.console import emit

EPILOG = """\b
Examples:
  hloinspect cache
  hloinspect cache clear

The folder is HLOINSPECT_CACHE, else hloinspect in XDG_CACHE_HOME or ~/.cache. HLOINSPECT_CACHE_BYTES is its limit
(1 GiB by default); what was not used for the longest goes first."""


@click.command("cache", epilog=EPILOG)
@click.argument("action", type=click.Choice(["show", "clear"]), default="show")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of standard output.")
def command(action: str, style: str, output: str | None) -> None:
    """Show how much is kept of steps that were compiled, or remove it (clear)."""
    import json

    from hloinspect.compile.cache import clear, entries, limit_bytes
    from hloinspect.options import cache_folder
    from hloinspect.units import bytes_text

    folder, limit = cache_folder(), limit_bytes()
    if action == "clear":
        count, size = clear(folder)
        word = "removed from"
    else:
        found = entries(folder)
        count, size = len(found), sum(size for _, size in found)
        word = "in"
    if style == "json":
        fields = {"folder": str(folder), "entries": count, "bytes": size, "limit_bytes": limit, "removed": word != "in"}
        emit(json.dumps(fields, indent=2), output)
        return
    amount = f"{count} compilation{'' if count == 1 else 's'} ({bytes_text(size)})"
    emit(f"{amount} {word} {folder}" + (f", which may hold {bytes_text(limit)}" if word == "in" else ""), output)
