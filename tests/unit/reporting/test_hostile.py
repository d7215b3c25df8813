"""Whatever stands in the strings of a log, a report shows it and does nothing with it."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import msgspec
import pytest
from markdown_it import MarkdownIt

from fuzzgraph.campaign.reports import rebuilt, write_reports
from fuzzgraph.finding import Finding
from fuzzgraph.reporting import progress_on, run_text
from fuzzgraph.repro.issue_text import issue_text
from fuzzgraph.run.coverage import CoverageMap
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import (
    CampaignFinished,
    CampaignStarted,
    CaseKept,
    CaseRun,
    Counted,
    Event,
    Export,
    Exported,
    FindingFlaky,
    FindingNew,
    FindingPursued,
    FindingRepeated,
    FindingWaiting,
    Progress,
    Setup,
    Shrunk,
    decode_event,
    encode_event,
    finding_id,
)
from fuzzgraph.run.spec import RunSpec
from fuzzgraph.text.escaping import one_line, visible
from tests.unit.reporting.runs import history, overrun, reported, summary

HOSTILE = (
    "<script>alert(1)</script>",
    "\n```\n# heading <img src=x onerror=alert(1)>\n",
    "a](javascript:alert(1)) [b](javascript:alert(2)) ![c](javascript:x)",
    '"><a href="javascript:alert(1)" onclick="x">x</a>',
    "`` | code | <b>bold</b> | &lt;i&gt; $x$ ~~gone~~",
    "turned \u202e\u2066 \u200bunseen \x1b[2J\x1b]0;title\x07 \x9b31m",
    "javascript:alert(document.domain)",
    "{{ 7 * 7 }} {% raw %} ]]> --> */ </style> </svg>",
    "../../../ESCAPED\\..\\x",
    "$(touch owned); `touch owned` & touch owned\n> owned",
)
FULL = reported(
    exports=(
        Export(kind="script", path="r/repro.py", rate="3/3"),
        Export(kind="issue", path="", error="ValueError: x"),
    ),
    also=(overrun("page_table"),),
    status="tolerated",
    issue="https://example.org/1",
    left=("export",),
)
COVERED = CoverageMap()
COVERED.add(["mode decode", "page_size=2"])
EVENTS: tuple[Event, ...] = (
    CampaignStarted(
        spec=RunSpec(
            setup=Setup(target="t", release="1", fault="f"), seed=1, out="o", corpus="c",
            ledger="l", baseline="b", database="d", profile="nightly",
        ),
        started="2026", fuzzgraph="0", beyond=("x",),
    ),
    CaseRun(
        index=0, digest="d", source="corpus", outcome="skipped", steps=1, seconds=0.1, note="n"
    ),
    CaseKept(case=history()),
    FindingNew(id=FULL.id, finding=overrun(), case=history()),
    FindingRepeated(id=FULL.id, digest="d", count=1),
    FindingWaiting(
        id=FULL.id, finding=overrun(), case=history(), also=(overrun("page_table"),)
    ),
    FindingFlaky(id=FULL.id, rate="1/3"),
    Shrunk(id=FULL.id, before="a", after="b", steps=1, requests=1, tries=1, seconds=0.1),
    FindingPursued(reported=FULL),
    Exported(reported=FULL),
    Progress(seconds=1.0, cases=1, steps=1, findings=1, rate=1.0, doing="x"),
    Counted(coverage=COVERED.record()),
    CampaignFinished(
        summary=summary(
            FULL,
            error="e", out="o", fallbacks={"k": 1}, quarantined={"q": 1}, mended=("m",),
            bad_entries=("b",), damaged=("d",), cut_off="c", killed=1, reason="failed",
            beside={FULL.id: (overrun("page_table"),)},
        )
    ),
)  # fmt: skip


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every string and every free key of a JSON value."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from leaves(one, (*path, index))


def put(value: Any, path: tuple[Any, ...], text: str) -> Any:
    changed = json.loads(json.dumps(value))
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = text
    return changed


def with_right_ids(value: Any) -> Any:
    """The same with each id that of its finding, as an attacker would have it."""
    if isinstance(value, dict):
        value = {name: with_right_ids(one) for name, one in value.items()}
        if "id" in value and isinstance(value.get("finding"), dict):
            found = value["finding"]
            names = ("oracle", "clause", "target", "buffer")
            mode = found["mode"] if found["step"] >= 0 else ""
            key = cast(Any, (*(found[name] for name in names), mode))
            value["id"] = finding_id(key)
    elif isinstance(value, list):
        value = [with_right_ids(one) for one in value]
    return value


def hostile(event: Event, text: str) -> tuple[Event, int]:
    """The event with the text in every string that takes it, and in how many."""
    value = json.loads(encode_event(event))
    count = 0
    for path in leaves(value):
        changed = with_right_ids(put(value, path, text))
        try:
            decode_event(json.dumps(changed))
        except Exception:  # a word of a closed list, an id, a link
            continue
        value, count = changed, count + 1
    return decode_event(json.dumps(value)), count


class Page(HTMLParser):
    """What a browser would run or follow."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append(name)
            if name in ("href", "src", "action", "xlink:href", "formaction"):
                self.links.append(value or "")


def check_html(text: str) -> None:
    page = Page()
    page.feed(text)
    assert page.tags.count("script") == 1 and page.tags.count("style") == 1
    assert not page.handlers
    assert not {"img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    for link in page.links:
        assert re.match(r"(https?://|#|findings/[\w.-]+/[^/]*$)", link), link
        assert ".." not in link.split("/")


def check_markdown(text: str) -> None:
    """Nothing but the headings, tables, code and links that we have written."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    kinds = {token.type for token in (*tokens, *inline)}
    assert not kinds & {"html_block", "html_inline", "image"}, kinds
    headings = [one.tag for one in tokens if one.type == "heading_open"]
    assert headings.count("h1") == 1
    for token in inline:
        if token.type == "link_open":
            href = str(token.attrs["href"])
            assert re.fullmatch(r"(https?://\S+|findings/[\w.-]+/case\.json)", href), href


def check_unseen(text: str) -> None:
    """No control but a line's end and a tab, no sign that turns or hides text."""
    unseen = {sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp")}
    assert unseen <= {"\n", "\t"}, unseen


@pytest.mark.parametrize("text", HOSTILE)
def test_reports_of_a_hostile_log_only_show_it(text: str, tmp_path: Path) -> None:
    events, counts = zip(*(hostile(event, text) for event in EVENTS), strict=True)
    assert sum(counts) > 60, "most strings take any text"
    run = tmp_path / "a" / "run"
    run.mkdir(parents=True)
    for name, told in (("killed", events[:-1]), ("whole", events)):
        (run / "events.jsonl").write_bytes(b"".join(map(encode_event, told)))
        assert not read_log(run / "events.jsonl").damaged, name
        found = rebuilt(run)
        write_reports(run, found)
        check_html((run / "report.html").read_text())
        check_markdown((run / "summary.md").read_text())
        for report in ("report.html", "summary.md", "junit.xml"):
            check_unseen((run / report).read_text())
        ElementTree.parse(run / "junit.xml")
        sarif = json.loads((run / "report.sarif").read_text())
        check_unseen("".join(every_text(sarif)))
        json.loads((run / "report.json").read_text())
        check_unseen(run_text(found))
    assert [path.name for path in tmp_path.rglob("*ESCAPED*")] == []
    check_terminal(events)


def every_text(value: Any) -> Iterator[str]:
    for path in leaves(value):
        place = value
        for step in path:
            place = place[step]
        yield place


def check_terminal(events: tuple[Event, ...]) -> None:
    stream = io.StringIO()
    progress = progress_on(stream)
    for event in events:
        progress(event)
    check_unseen(stream.getvalue())
    lines = stream.getvalue().splitlines()
    assert len(lines) <= 5, "a line for the start, the finding, its shrinking, the figures"


@pytest.mark.parametrize("text", HOSTILE)
def test_an_issue_of_a_hostile_finding_only_shows_it(text: str) -> None:
    words = {name: text for name in ("oracle", "target", "mode", "buffer", "message", "confirmed")}
    detail: dict[str, Any] = {"where": text, "error": text, "got": text, text: text}
    finding = msgspec.structs.replace(overrun(), **words, detail=detail)
    issue = issue_text(history(), finding, Setup(target=text, release=text))
    check_markdown(issue)
    check_unseen(issue)


def test_a_link_that_is_not_of_the_web_is_refused_where_a_log_is_read(tmp_path: Path) -> None:
    good = encode_event(FindingPursued(reported=FULL))
    bad = good.replace(b"https://example.org/1", b"javascript:alert(1)")
    (tmp_path / "events.jsonl").write_bytes(good + bad + good)
    log = read_log(tmp_path / "events.jsonl")
    assert (len(log.events), len(log.damaged)) == (2, 1)


def test_a_command_to_copy_is_not_the_one_of_the_log(tmp_path: Path) -> None:
    told = msgspec.structs.replace(FULL, replay="rm -rf ~", case_path="a b; touch owned")
    (tmp_path / "events.jsonl").write_bytes(
        encode_event(EVENTS[0]) + encode_event(FindingPursued(reported=told))
    )
    (found,) = rebuilt(tmp_path).findings
    assert found.replay.startswith("fuzzgraph replay 'a b; touch owned' --target t ")


@pytest.mark.parametrize(
    "text",
    ["plain, with \t tab", "", "Grüße 数 ≤ 3", "a\nb"],
    ids=["tab", "none", "letters", "lines"],
)
def test_text_that_can_be_read_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_a_line_is_one_line() -> None:
    assert one_line("  a\r\n   b\u2028c\x1b") == "  a b c\\x1b"


def test_the_checks_of_this_file_can_fail() -> None:
    for check, text in (
        (check_html, "<script></script><style></style><a href='javascript:x'>"),
        (check_html, "<script></script><style></style><script>"),
        (check_markdown, "# a\n\n<b>x</b>"),
        (check_markdown, "# a\n\n[x](mailto:x)"),
        (check_unseen, "\u202e"),
    ):
        with pytest.raises(AssertionError):
            check(text)
    assert isinstance(overrun(), Finding)
