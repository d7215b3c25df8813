"""The ledger: entries hold until their day, and a bad one costs itself only."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from fuzzgraph.errors import UsageError
from fuzzgraph.ledger import load_ledger, parse_ledger
from fuzzgraph.run.records import finding_id
from tests.fakes import finding

TODAY = date(2026, 6, 1)
ISSUE = 'issue = "https://example.org/1"\nexpires = 2026-12-31\n'
TOLERATED = f'[[tolerated]]\nbuffer = "kv_indices"\n{ISSUE}'
QUARANTINED = f'[[quarantined]]\nwhen = ["mode draft", "page_size=3"]\n{ISSUE}'


def test_a_tolerated_entry_fits_by_the_parts_of_the_key_it_names() -> None:
    ledger = parse_ledger(TOLERATED, TODAY)
    entry = ledger.tolerates(finding(buffer="kv_indices", mode="idle"))
    assert entry is not None and entry.issue == "https://example.org/1"
    assert ledger.tolerates(finding(buffer="kv_indptr")) is None


def test_a_star_stands_for_any_text_and_a_finding_id_for_one_finding() -> None:
    star = parse_ledger(f'[[tolerated]]\nbuffer = "backend.*"\n{ISSUE}', TODAY)
    assert star.tolerates(finding(buffer="backend.kv_indices"))
    assert not star.tolerates(finding(buffer="kv_indices"))
    one = finding_id(finding().key)
    exact = parse_ledger(f'[[tolerated]]\nfinding = "{one}"\n{ISSUE}', TODAY)
    assert exact.tolerates(finding())
    assert not exact.tolerates(finding(mode="idle"))


def test_a_quarantined_entry_keeps_out_what_covers_all_it_names() -> None:
    ledger = parse_ledger(QUARANTINED, TODAY)
    assert ledger.keeps_out("t", "d", ["mode draft", "page_size=3", "via graph"])
    assert not ledger.keeps_out("t", "d", ["mode draft"])


def test_a_quarantined_entry_keeps_out_a_case_by_its_digest_on_its_target_only() -> None:
    text = f'[[quarantined]]\ntarget = "sglang-*"\ncases = ["0123456789ab"]\n{ISSUE}'
    ledger = parse_ledger(text, TODAY)
    assert ledger.keeps_out("sglang-aiter", "0123456789ab", [])
    assert not ledger.keeps_out("builtin", "0123456789ab", [])


@pytest.mark.parametrize(("day", "holds"), [(date(2026, 12, 31), True), (date(2027, 1, 1), False)])
def test_an_entry_holds_until_its_day(day: date, holds: bool) -> None:
    ledger = parse_ledger(TOLERATED, day)
    assert (ledger.tolerates(finding()) is not None) == holds
    assert [line for line in ledger.bad_lines if "expired on 2026-12-31" in line] == (
        [] if holds else list(ledger.bad_lines)
    )


BAD = {
    "no issue": ('[[tolerated]]\nbuffer = "x"\nexpires = 2026-12-31\n', "required field `issue`"),
    "no link": (TOLERATED.replace("https://example.org/1", "later"), "is not a link"),
    "no expiry": ('[[tolerated]]\nbuffer="x"\nissue="https://e.org"\n', "required field `expires`"),
    "an unknown field": (f"{TOLERATED}bufer = 1\n", "unknown field `bufer`"),
    "fits everything": (f'[[tolerated]]\nmode = "idle"\n{ISSUE}', "fits every finding"),
    "keeps nothing out": (f"[[quarantined]]\n{ISSUE}", "keeps nothing out"),
    "an unknown table": (f"[[ignored]]\n{ISSUE}", "'ignored' is unknown"),
    "a table, not a list": (f"[tolerated]\n{ISSUE}", "'tolerated' is unknown"),
    "no TOML": ("[[tolerated]]\nbuffer = = 3\n", "not a ledger entry"),
    "a broken header": ("[[tolerated\n", "not a ledger entry"),
    "nested beyond all bounds": (f"[[tolerated]]\na = {'[' * 100_000}\n", "not a ledger entry"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=list(BAD))
def test_a_bad_entry_is_named_by_its_line_and_costs_itself_only(text: str, message: str) -> None:
    ledger = parse_ledger(f"# ours\n{TOLERATED}\n{text}\n{QUARANTINED}", TODAY, where="ledger.toml")
    assert (len(ledger.tolerated), len(ledger.quarantined)) == (1, 1)
    (line,) = ledger.bad_lines
    assert line.startswith("ledger.toml:7: ")
    assert message in line
    assert "\n" not in line


def test_indented_entries_hold_like_those_at_the_margin_and_fail_alone() -> None:
    other = f'[[tolerated]]\nbuffer = "kv_indptr"\n{ISSUE}'
    text = f"{TOLERATED}  {other}  [[tolerated]]\n{ISSUE}  {QUARANTINED}"
    ledger = parse_ledger(text, TODAY)
    assert [entry.buffer for entry in ledger.tolerated] == ["kv_indices", "kv_indptr"]
    assert len(ledger.quarantined) == 1
    (line,) = ledger.bad_lines
    assert "fits every finding" in line


def test_a_ledger_whose_list_is_empty_holds_nothing() -> None:
    assert parse_ledger("tolerated = []\nquarantined = []\n", TODAY) == parse_ledger("", TODAY)


def test_a_ledger_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ledger .*none\.toml: cannot be read \(No such file"):
        load_ledger(tmp_path / "none.toml", TODAY)
