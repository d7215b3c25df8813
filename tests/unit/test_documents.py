"""What the documents name exists: links, headings, files, modules, floors, modes and stages."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import get_args

import pytest

from fuzzgraph.case import Mode
from fuzzgraph.finding import Stage
from fuzzgraph.worker import Limits

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
NESTED = [*(ROOT / "fuzzgraph").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES, *sorted(NESTED)]
TODAY = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]
"""A changelog names what there was."""
SVG = "{http://www.w3.org/2000/svg}"
OPTIONAL = {"corpus/ledger.toml", "corpus/baseline.jsonl"}
"""Files that a project may have; this one has none."""
FOLDERS = "fuzzgraph|strategies|oracles|tests|docs|corpus|benchmarks|constraints|containers|reports"

pytestmark = pytest.mark.skipif(not PAGES, reason="needs the repository")
every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
every_document_of_today = pytest.mark.parametrize("path", TODAY, ids=lambda path: path.name)


def prose(text: str) -> str:
    """A document without its blocks of code."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def links(text: str) -> list[str]:
    """Links within the project: what a document shows and what it leads to."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def leads_nowhere(document: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    goal = document.parent / name if name else document
    return not goal.exists() or bool(anchor and anchor not in anchors(goal.read_text("utf-8")))


@every_document
def test_links_lead_to_files_and_headings(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [link for link in links(text) if leads_nowhere(path, link)] == []


@pytest.mark.parametrize("link", ["no-such-page.md", "README.md#no-such-heading", "#no-such"])
def test_a_link_to_nowhere_is_caught(link: str) -> None:
    [found] = links(f"See [this]({link}).")
    assert leads_nowhere(ROOT / "README.md", found)


def named_paths(text: str) -> list[str]:
    """Files and folders of the tree that stand in backticks, without those that a run makes."""
    quoted = re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", prose(text))
    made = re.compile(r"reports/runs|[A-Z]{3}")
    return [path for path in quoted if path not in OPTIONAL and not made.search(path)]


@every_document_of_today
def test_files_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [name for name in named_paths(text) if not (ROOT / name).exists()] == []


def named_modules(text: str) -> list[str]:
    """`fuzzgraph.toml` is a file, and `tool.fuzzgraph` a table of one."""
    return re.findall(r"\bfuzzgraph(?!\.toml\b)(?:\.[A-Za-z_]\w*)+", text)


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module has."""
    words = name.split(".")
    module = importlib.import_module(words[0])
    for number, word in enumerate(words[1:], 2):
        dotted = ".".join(words[:number])
        if hasattr(module, "__path__") and importlib.util.find_spec(dotted):
            module = importlib.import_module(dotted)
        else:
            return hasattr(module, word)
    return True


@every_document_of_today
def test_modules_that_are_named_exist(path: Path) -> None:
    names = set(named_modules(path.read_text(encoding="utf-8")))
    assert sorted(name for name in names if not is_there(name)) == []


@pytest.mark.parametrize("name", ["fuzzgraph.nowhere", "fuzzgraph.case.nothing"])
def test_a_module_that_does_not_exist_is_caught(name: str) -> None:
    assert [found for found in named_modules(f"see `{name}`") if not is_there(found)] == [name]


def floors_of_imports() -> list[set[str]]:
    """The modules of each floor, from the top, as the linter of imports knows them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if one.get("containers") == ["fuzzgraph"]]
    return [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]


def rows_of_the_table() -> dict[str, str]:
    """What the table of floors says of the modules of each floor, from the top."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Floors")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| ([^|]+) \| (`[^|]+) \|", section, re.MULTILINE))


def floors_of_the_table() -> list[set[str]]:
    return [set(re.findall(r"`(\w+)`", row)) for row in rows_of_the_table().values()]


def test_the_table_of_floors_names_every_module_from_the_top_to_the_ground() -> None:
    linted = [name for floor in floors_of_imports() for name in sorted(floor - {"__main__"})]
    shown = [name for floor in floors_of_the_table() for name in floor]
    assert sorted(shown) == sorted(linted)
    heights = {name: height for height, floor in enumerate(floors_of_imports()) for name in floor}
    spans = [[heights[name] for name in floor] for floor in floors_of_the_table() if floor]
    tops = [min(span) for span in spans]
    assert tops == sorted(tops)


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in PAGES} - {"README.md"} <= set(links(index))


def entries(text: str, term: str) -> set[str]:
    """What the entry of a term in the glossary lists in backticks."""
    [entry] = re.findall(rf"\*\*{term}\*\*:(.*?)(?=\n- |\n\n|\. \*\*)", text, re.DOTALL)
    return set(re.findall(r"`(\w+)`", entry))


def test_the_glossary_knows_the_modes_and_the_stages() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert entries(text, "mode") == set(get_args(Mode))
    assert entries(text, "Stage") == set(get_args(Stage))


def test_the_page_on_workers_knows_the_deadlines() -> None:
    text = (ROOT / "docs" / "how-a-worker-dies.md").read_text(encoding="utf-8")
    section = text.partition("## Deadlines")[2]
    rows = re.findall(r"^\| (.+) \| (\d+) \|$", section, re.MULTILINE)
    limits = Limits()
    stages = {name: float(value) for names, value in rows for name in re.findall(r"`(\w+)`", names)}
    assert stages == limits.stage_seconds
    others = [float(value) for names, value in rows if "`" not in names]
    assert others == [limits.opening_seconds, limits.case_seconds]


def imported(text: str) -> list[str]:
    """What the examples of a document import from FuzzGraph."""
    found = re.findall(r"^from (fuzzgraph[\w.]*) import (\([^)]*\)|.+)$", text, re.MULTILINE)
    return [f"{module}.{name}" for module, names in found for name in re.findall(r"\w+", names)]


@every_document_of_today
def test_what_the_examples_import_exists(path: Path) -> None:
    names = imported(path.read_text(encoding="utf-8"))
    assert [name for name in names if not is_there(name)] == []


def shown_in_the_picture(kind: str) -> list[str]:
    """The texts of one kind in the picture of the floors, from the top."""
    root = ET.parse(ROOT / "docs" / "pictures" / "floors.svg").getroot()
    texts = [text for text in root.iter(f"{SVG}text") if text.attrib.get("class") == kind]
    return [text.text or "" for text in texts]


def test_the_picture_of_the_floors_agrees_with_the_table_and_shows_every_package() -> None:
    table = floors_of_the_table()
    picture = [set(names.split()) for names in shown_in_the_picture("code")]
    assert shown_in_the_picture("title end") == list(rows_of_the_table())
    assert [shown - named for shown, named in zip(picture, table, strict=True)] == [set()] * len(
        table
    )
    packages = {path.parent.name for path in (ROOT / "fuzzgraph").glob("*/__init__.py")}
    assert packages <= set().union(*picture)


def test_what_is_unreleased_is_grouped_for_its_readers() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.partition("## Unreleased\n")[2].partition("\n## ")[0]
    groups = re.findall(r"^### (.+)$", unreleased, re.MULTILINE)
    assert groups == [one for one in ("Added", "Changed", "Fixed", "Removed") if one in groups]
    blocks = [block for block in unreleased.split("\n\n") if block.strip()]
    kinds = re.compile(r"### \w+|[A-Z][\w ]+:|(- .*(\n  .*)*\n?)+")
    assert [block for block in blocks if not kinds.fullmatch(block.strip("\n"))] == []
