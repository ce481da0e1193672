"""A measured TPU run beside its prediction: the waits of six host copies, and the step.

    python benchmarks/accuracy_golden.py MODULE

MODULE is the optimized HLO of the program that openxla/xprof's test trace of four TPU v6e holds (its XSpace has the
module). The measured figures are medians over the clean steps of TPU:0 in that trace. Three numbers of the target come
from it too: the rate of each direction alone, and the rest of it with both on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from accuracy_tables import markdown, versions

from hloinspect.hardware import load_target, with_link
from hloinspect.hlo.load import load_module
from hloinspect.offload.transfers import find_offload
from hloinspect.predict import predict

WAITS_MS = {"copy-done": 189.2, "copy-done.2": 194.1, "copy-done.4": 194.4, "copy-done.5": 182.4}
STEP_MS = 784.154
LINK = "d2h=29.4GB/s,h2d=28.4GB/s"


def golden_rows(module: Path) -> list[tuple[str, float, float]]:
    """Return (what, measured, predicted) in milliseconds."""
    offload = find_offload(load_module(module))
    found = predict(offload, with_link(load_target("v6e"), LINK), 4, 8)
    waits = {t.done: found.transfers[t.id].times.wait_ps / 1e9 for t in offload.transfers}
    rows = [(f"wait at `{done}`", measured, waits[done]) for done, measured in WAITS_MS.items()]
    return [*rows, ("the step", STEP_MS, found.step.time_ps / 1e9)]


def main(write: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("module", type=Path)
    rows = (
        (what, f"{measured:.1f} ms", f"{predicted:.1f} ms", f"{predicted / measured - 1:+.1%}")
        for what, measured, predicted in golden_rows(parser.parse_args().module)
    )
    write(versions() + "\n")
    write(markdown(("", "measured (median of clean steps)", "predicted", "difference"), rows))


if __name__ == "__main__":
    main()
