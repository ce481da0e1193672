"""What a report has to say of its target: a stand-in, figures that nobody has measured, sources that differ."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.hardware.target import Figure, Target


def stand_in_note(target: Target) -> str | None:
    """Return one line where a step for ``target`` is compiled with another device's description, else None."""
    if target.stand_in is None:
        return None
    return (
        f"XLA has no description of {target.name}: a step for it is compiled for a stand-in, {target.stand_in}, and "
        "deployed kernels and schedule may differ"
    )


def target_limits(target: Target | None, compiled_for: str | None = None) -> tuple[str, ...]:
    """Return what a report judged for ``target`` must say of it, a line each: nothing for one that XLA describes and
    whose figures are settled. ``compiled_for`` is the target that the module was compiled for, where that is known.
    """
    if target is None:
        return ()
    limits = []
    if note := stand_in_note(target):
        if compiled_for not in (None, target.name):
            note = f"compiled for a stand-in, {compiled_for}: kernels and schedule for {target.name} may differ"
        limits.append(note)
    figures = tuple(_figures(target))
    announced = [name for name, figure, _, _ in figures if figure.announced]
    if all(peak.announced for peak in target.peak_flops.values()):
        announced = ["products of every type", *announced[len(target.peak_flops) :]]
    if announced:
        limits.append(f"figures of {target.name} that are announced, not measured: {', '.join(announced)}")
    if spread := [
        f"{name} {figure.at('low') / unit:,.4g} to {figure.at('high') / unit:,.4g} {of}"
        for name, figure, unit, of in figures
        if figure.at("low") < figure.at("high")
    ]:
        limits.append(f"public sources differ about {target.name}, and the range covers them: {', '.join(spread)}")
    return tuple(limits)


def _figures(target: Target) -> Iterator[tuple[str, Figure, float, str]]:
    """Yield the figures with a name, and a unit with its name."""
    for dtype, peak in target.peak_flops.items():
        yield f"{dtype} products", peak, 1e15, "PFLOP/s"
    yield "other compute", target.vector_flops, 1e12, "TFLOP/s"
    yield "HBM", target.hbm_bytes, 1e9, "GB"
    yield "HBM bandwidth", target.hbm_bytes_per_s, 1e12, "TB/s"
    if link := target.link:
        yield "link d2h", link.d2h_bytes_per_s, 1e9, "GB/s"
        yield "link h2d", link.h2d_bytes_per_s, 1e9, "GB/s"
        if link.host_bytes_per_s is not None:
            yield "host memory bandwidth", link.host_bytes_per_s, 1e9, "GB/s"
        if link.host_memory_bytes is not None:
            yield "host memory", link.host_memory_bytes, 1e9, "GB"
    for level in target.levels:
        yield level.name, level.bytes_per_s, 1e9, "GB/s"
