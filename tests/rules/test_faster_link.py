"""A faster link is recommended only where there could be one."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hloinspect.analyze.inspect import inspect
from hloinspect.cli import main
from hloinspect.plan.verb import PlanRequest, make_plan
from hloinspect.render.page import html_page
from hloinspect.report.link import MOST_TIMES_FASTER, link_that_hides_gbps
from tests.support.rules_samples import fixture

STEP = fixture("gb200_offload_scan")


@pytest.mark.parametrize(("link", "is_named"), [("55GB/s", True), ("10GB/s", False)])
def test_a_link_that_does_not_exist_is_no_advice(link: str, is_named: bool) -> None:
    """Use sends that need 323 GB/s: 6 times 55 GB/s, and 32 times 10 GB/s."""
    result = CliRunner().invoke(main, ["inspect", str(STEP), "--target", "h100", "--link", link])
    assert ("or a link of 3" in result.stdout) is is_named
    found = inspect(str(STEP), target="h100", link=link)
    rates = [link_that_hides_gbps(found.report, transfer) for transfer in found.report.transfers]
    assert (rates[0] is not None) is is_named
    (point,) = make_plan(PlanRequest(sources=(str(STEP),), targets=("h100",), links=(link,))).points
    assert [line.needed_link_gbps for line in point.transfers] == rates


def test_the_figure_stays_in_the_data_and_is_not_on_the_page() -> None:
    found = inspect(str(STEP), target="h100", link="10GB/s")
    needed = [transfer.predicted.needed_link_gbps for transfer in found.report.transfers if transfer.predicted]
    assert min(needed) > MOST_TIMES_FASTER * 10
    page = html_page(found)
    text = page.partition('type="application/json"')[2].partition(">")[2].partition("</script>")[0]
    assert json.loads(text)["sides"][0]["transfers"]["columns"]["p.needed_link_gbps"] == [None]
