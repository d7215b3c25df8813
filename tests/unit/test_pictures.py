"""The pictures of the documents: small, made by hand, whole without network, in light and dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
DRAWING = {"svg", "title", "desc", "style", "g", "rect", "path", "text"}
LARGEST = 20_000
"""Bytes: a picture drawn by hand has no more."""

every_picture = pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)

pytestmark = pytest.mark.skipif(not PICTURES, reason="needs the repository")


def problems_of(text: str) -> list[str]:
    """What keeps an SVG from being shown anywhere as it was drawn."""
    root = ET.fromstring(text)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    problems = [f"element {tag}" for tag in sorted(tags - DRAWING)]
    for element in root.iter():
        problems += [f"attribute {name}" for name in element.attrib if name.endswith("href")]
        problems += [f"attribute {name}" for name in element.attrib if name.startswith("on")]
    outside = re.findall(r"url\([^)]*\)|@import|@font-face", text)
    outside += [link for link in re.findall(r"https?://[^\s\"']+", text) if link != SVG[1:-1]]
    return problems + [f"reference {reference}" for reference in outside]


@every_picture
def test_a_picture_is_xml_of_plain_shapes_and_needs_nothing_from_outside(path: Path) -> None:
    assert problems_of(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "inside",
    [
        '<image href="https://example.org/x.png"/>',
        '<rect fill="url(#gradient)"/>',
        "<style>@import 'https://example.org/x.css';</style>",
        "<script>1</script>",
        '<rect onclick="1"/>',
    ],
)
def test_what_a_picture_must_not_hold_is_caught(inside: str) -> None:
    assert problems_of(f'<svg xmlns="{SVG[1:-1]}">{inside}</svg>')


@every_picture
def test_a_picture_says_in_words_what_it_shows(path: Path) -> None:
    root = ET.parse(path).getroot()
    said = {name: root.findtext(f"{SVG}{name}") for name in ("title", "desc")}
    assert all(said.values())
    assert root.attrib["aria-labelledby"].split() == [
        element.attrib["id"] for element in root.iter() if "id" in element.attrib
    ]


def colours(style: str) -> dict[str, str]:
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", style))


@every_picture
def test_a_picture_has_the_same_colours_by_name_in_light_and_in_dark(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    dark, rest = dark.split("\n    }\n", 1)
    used = set(re.findall(r"var\((--[\w-]+)\)", rest))
    assert used == set(colours(light)) == set(colours(dark))
    assert "#" not in rest, "a colour that does not change with the scheme"


@every_picture
def test_a_picture_is_small(path: Path) -> None:
    assert path.stat().st_size <= LARGEST


@every_picture
def test_a_picture_is_shown_by_a_document(path: Path) -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    shown = [
        document.name
        for document in documents
        if f"pictures/{path.name})" in document.read_text(encoding="utf-8")
    ]
    assert shown
