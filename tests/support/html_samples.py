"""Pages of `hloinspect report` for tests: their elements, and the data in them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "input", "br"}
HOSTILE_NAME = "evil<script>window.pwned=1</script>"
HOSTILE_FILE = "/tmp/</script><img src=x onerror='window.pwned=2'>\u202egnp.py"

HOSTILE_MODULE = """\
HloModule jit_</title><script>pwned</script>, is_scheduled=true, entry_computation_layout={(f32[1024,1024]{1,0})->f32[1024,1024]{1,0}}

FileNames
1 "FILE"
2 "</script><!--"

FunctionNames
1 "f<b>\\u2028</b>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY main.1 (p: f32[1024,1024]) -> f32[1024,1024] {
  p = f32[1024,1024]{1,0} parameter(0), metadata={op_name="x['<script>window.pwned=3</script>']"}
  copy-start.1 = (f32[1024,1024]{1,0:S(5)}, f32[1024,1024]{1,0}, u32[]) copy-start(p), metadata={op_name="NAME" stack_frame_id=1}
  fusion.1 = f32[1024,1024]{1,0} negate(p), metadata={op_name="jit(f)/neg" stack_frame_id=1}
  copy-done.1 = f32[1024,1024]{1,0:S(5)} copy-done(copy-start.1)
  copy-start.2 = (f32[1024,1024]{1,0}, f32[1024,1024]{1,0:S(5)}, u32[]) copy-start(copy-done.1), metadata={op_name="NAME" stack_frame_id=1}
  copy-done.2 = f32[1024,1024]{1,0} copy-done(copy-start.2)
  ROOT add.1 = f32[1024,1024]{1,0} add(copy-done.2, fusion.1)
}
""".replace("FILE", HOSTILE_FILE).replace("NAME", HOSTILE_NAME)  # noqa: E501


@dataclass
class Element:
    """A start tag, and the text directly inside."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """The elements of a page in order. Raises AssertionError where tags do not match."""

    elements: list[Element] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute stands twice in {tag}"
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1].text += data

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    @property
    def data(self) -> dict[str, Any]:
        """Return the data that the page's script reads."""
        (island,) = [e for e in self.all("script") if e.attributes.get("type") == "application/json"]
        return dict(json.loads(island.text))


def parse_page(text: str) -> Page:
    """Return the elements of a page."""
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def summed(differences: list[int]) -> list[int]:
    """Return the numbers that the page's script computes from differences to the one before."""
    found, total = [], 0
    for difference in differences:
        total += difference
        found.append(total)
    return found


def column(table: dict[str, Any], name: str, strings: list[str]) -> list[Any]:
    """Return a column of a table of the page, one value for each row."""
    values = table["columns"][name]
    values = values * table["count"] if len(values) == 1 else values
    return [strings[v] if v is not None else None for v in values] if name in table["texts"] else values
