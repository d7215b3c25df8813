"""The page people share: says it in a sentence, loads nothing, stays small, escapes everything."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzzgraph.campaign.reports import write_reports
from fuzzgraph.case import Case
from fuzzgraph.finding import Clause, Finding
from fuzzgraph.reporting.html import html
from tests.unit.reporting.runs import history, overrun, reported, summary


class Page(HTMLParser):
    """What a page loads, how its tags nest, and its text."""

    VOID = ("meta", "br", "link", "img", "rect", "path")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.words: list[str] = []
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "source"):
            self.loads += [str(given[name]) for name in ("src", "href") if name in given]
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag not in self.VOID or tag == "rect":
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Closed at once."""

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack[-1] == tag, f"</{tag}> closes {self.stack[-1:]}"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_says_clause_and_buffer_in_a_sentence_and_shows_the_rest() -> None:
    page = Page(html(summary(reported())))
    text = " ".join("".join(page.words).split())
    for words in (
        "A decode replay writes 2 elements past the end of kv_indices",
        "writes only what its batch owns",
        "step 1",
        "padded",
        "breaks here",
        "red zone",
        "20, 21 from +0 to +1",
        "fuzzgraph replay r/case.json",
        "kernels='triton' is not here",
        "unsupported by target: modes: draft",
    ):
        assert words in text
    assert page.stack == []


def test_the_page_loads_nothing() -> None:
    text = html(summary(reported()))
    assert Page(text).loads == []
    assert "url(" not in text.replace("url(#hatch)", "")
    assert "@import" not in text


def test_text_of_an_engine_cannot_become_markup() -> None:
    nasty = msgspec.structs.replace(
        overrun("<script>alert(1)</script>"), message='"><img src=x onerror=y>'
    )
    text = html(summary(reported(nasty), error="<b>x</b>"))
    assert "<script>alert" not in text and "<img" not in text and "<b>x</b>" not in text
    assert Page(text).loads == []


def test_a_page_of_200_findings_with_their_scripts_stays_below_2_mb(tmp_path: Path) -> None:
    found = [
        reported(
            overrun(f"backend.cuda_graph_kv_indices_{number}", step=7),
            case=history(8),
            also=(overrun("other"),) * 3,
        )
        for number in range(200)
    ]
    folder = tmp_path / "r"
    for one in found:
        place = folder / "findings" / one.id
        place.mkdir(parents=True)
        (place / "repro.py").write_text("x = '<&>'  # a line of a script\n" * 700)
        (place / "test_repro.py").write_text("y = 1\n" * 300)
    write_reports(folder, summary(*found))
    page = (folder / "report.html").read_text()
    assert len(page.encode()) < 2_000_000
    assert len(set(Page(page).ids) & {one.id for one in found}) == 200
    assert "a line of a script" in page


def of_clause(clause: Clause, symptom: Any, **changes: Any) -> Finding:
    record = overrun(str(changes.pop("buffer", "attention")))
    changes.setdefault("detail", {})
    return msgspec.structs.replace(record, clause=clause, symptom=symptom, **changes)


KINDS: tuple[tuple[Finding, str], ...] = (
    (
        of_clause("computes", "mismatch", detail={"got": 1.5, "want": 2.0, "index": [0, 1]}),
        "A decode replay computes attention[0, 1] = 1.5; float64 attention gives 2",
    ),
    (
        of_clause("computes", "mismatch", detail={"got": 0.1, "want": 0.1 + 1e-12}),
        "A decode replay computes attention = 0.1; float64 attention gives 0.100000000001",
    ),
    (
        of_clause("reads", "mismatch", detail={"blamed": "kv_pool.k"}),
        "In a decode replay, attention depends on memory that its batch does not name: it reads"
        " kv_pool.k",
    ),
    (
        of_clause("history", "mismatch", detail={"kept_from": 0}),
        "A decode replay overwrites attention, which step 0 handed out",
    ),
    (
        of_clause(
            "writes", "foreign_write", buffer="kv.k", detail={"indices": [7], "what": "slot"}
        ),
        "A decode replay changes KV slot 7 of kv.k, which its batch does not own",
    ),
    (
        of_clause(
            "metadata",
            "broken_contract",
            buffer="seq_lens",
            message="step 1 (raw_bs=1, padded_bs=2): seq_lens[1] is 3, must be 1 (slots.py)",
        ),
        "seq_lens[1] is 3, must be 1",
    ),
    (
        of_clause("survives", "signal", buffer="", detail={"child": "ended by SIGSEGV"}),
        "A decode replay kills the engine's process: ended by SIGSEGV",
    ),
)


@pytest.mark.parametrize(("finding", "words"), KINDS, ids=lambda value: str(value)[:30])
def test_every_kind_of_finding_has_its_sentence_and_both_sides(
    finding: Finding, words: str
) -> None:
    page = Page(html(summary(reported(finding))))
    text = "".join(page.words)
    assert words in text
    assert page.stack == []
    expected, got = re.findall(r'<div class="(?:expected|got)"><span>\w+</span><code>(.+?)</code>',
                               html(summary(reported(finding))), re.DOTALL)  # fmt: skip
    assert expected != got


def test_a_page_that_was_sent_alone_holds_its_case() -> None:
    found = reported()
    text = html(summary(found))
    page = "".join(Page(text).words)
    start = page.index("Case (save it as case.json)") + len("Case (save it as case.json)")
    case, _ = json.JSONDecoder().raw_decode(page[start:].lstrip())
    assert msgspec.convert(case, Case) == found.case


def test_the_worst_finding_comes_first_with_its_severity_and_others_of_its_cause_below() -> None:
    low = reported(of_clause("metadata", "broken_contract", buffer="seq_lens"), digest="a")
    same = msgspec.structs.replace(overrun("idle.kv_indices"), mode="idle")
    page = "".join(Page(html(summary(low, reported(), reported(same, digest="b")))).words)
    shown = [page.index(f"Finding {number} of 3, severity {word}") for number, word in
             ((1, "critical"), (2, "critical"), (3, "low"))]  # fmt: skip
    assert shown == sorted(shown)
    assert "probably the same cause: same fault of kv_indices in another kind of step" in page
