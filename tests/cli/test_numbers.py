"""Numbers on the command line that make no sense end a command before it begins."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from hloinspect.cli import main
from tests.support.gate_samples import SMALL

INSPECT, PLAN = ("inspect", str(SMALL), "--target", "gb200"), ("plan", str(SMALL), "--target", "gb200")
CHECK = ("check", str(SMALL), "--target", "gb200")
COMPILE = ("compile", "train.py:step", "--target", "gb200", "-o", "out")


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        *((INSPECT, "--link", f"{rate}GB/s") for rate in ("1e-300", "1e400", "0", "1e300", "1e-5", "9" * 400)),
        *((PLAN, "--link", f"d2h={rate}GB/s,h2d=5GB/s") for rate in ("1e-300", "1e400")),
        *((command, "--devices", "1" + "0" * 30) for command in (INSPECT, PLAN, CHECK, COMPILE)),
        *(
            (command, "--topology", text)
            for command in (INSPECT, COMPILE)
            for text in ("9" * 14 + "x9x9", "0x1x1", "-1")
        ),
        *((PLAN, "--samples", number) for number in ("nan", "1e400", "1e-320", "-1", "1e300")),
        *((PLAN, "--tokens", number) for number in ("nan", "inf", "1e308", "0", "-1")),
        *((PLAN, "--memory", number) for number in ("nan%", "1e400%", "0%", "-5%")),
        *(((*PLAN, "--search"), "--time", text) for text in ("nanm", "1e400s", "1e300h", "0s")),
        *((PLAN, "--jobs", number) for number in ("0", "1" + "0" * 30)),
        *((COMPILE, "--timeout", number) for number in ("nan", "1e400", "0", "-1", "1e300")),
        *((CHECK, "--budget", f"stall={number}") for number in ("nan%", "1e400%", "1e308ms", "-1ms")),
        (CHECK, "--budget", "memory.device=1e300GiB"),
    ],
)
def test_an_absurd_number_is_one_line_with_its_option(command: tuple[str, ...], option: str, value: str) -> None:
    result = CliRunner().invoke(main, [*command, f"{option}={value}"])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    error, *hint = result.stderr.splitlines()
    assert error.startswith("hloinspect: error: ")
    assert option in error
    assert "internal error" not in error
    assert not hint or hint == [f"try: hloinspect {command[0]} --help"]
