"""Check that links between the documents, and from the code to them, lead to a file and a heading that exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.places import ROOT

DOCUMENTS = [
    *(name for name in ("README.md", "CONTRIBUTING.md") if (ROOT / name).exists()),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("**/*.md")),
]
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\(\s*([^)\s]+)[^)]*\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def links(text: str) -> list[str]:
    """Return the targets of all links and images of a Markdown text, without those to other sites."""
    prose = INLINE_CODE.sub("", FENCE.sub("", text))
    return [target for target in LINK.findall(prose) if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> Iterator[str]:
    """Yield the anchors that GitHub gives to the headings of a Markdown text."""
    seen: Counter[str] = Counter()
    for heading in HEADING.findall(FENCE.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        yield f"{slug}-{seen[slug]}" if seen[slug] else slug
        seen[slug] += 1


@cache
def anchors_of(path: Path) -> frozenset[str]:
    return frozenset(anchors(path.read_text(encoding="utf-8")))


def broken(document: Path) -> list[str]:
    """Return the links of a document that lead to no file or to no heading."""
    found = []
    for target in links(document.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors_of(path)):
            found.append(target)
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file_and_a_heading(document: str) -> None:
    assert broken(ROOT / document) == []


def test_every_document_that_the_code_names_exists() -> None:
    for folder in ("hloinspect", "benchmarks", "examples", "fixtures"):
        for path in (ROOT / folder).glob("**/*.py"):
            for name in re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text(encoding="utf-8")):
                assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}"


def test_every_page_is_listed_in_the_index() -> None:
    listed = set(links((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed


def test_anchors_are_those_of_github_and_code_has_no_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# The HTML page: `report`\n## Two words\n## Two words\n```\n# no heading [x](none.md)\n```\n"
        "`[y](none.md)` [a](#the-html-page-report) [b](page.md#two-words-1) [c](#no-heading-xnonemd)\n"
        "[wide\nlink](page.md#two-words) [d](none.md) [e](https://example.org/none.md)\n"
    )
    assert broken(page) == ["#no-heading-xnonemd", "none.md"]
