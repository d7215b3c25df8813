"""How results and judgements are counted, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.errors import UsageError
from fuzzgraph.mutants import judgements, report
from fuzzgraph.mutants.records import Judgement
from fuzzgraph.mutants.score import Score, score
from tests.unit.mutants.records import log_of, mutant, result

FOUND = [result("a", "found"), result("b", "found")]


def judged(**said: Judgement) -> Score:
    names = ("c", "d", "e", "f")
    return score(log_of(*FOUND, *map(result, names), result("g", "does_not_start")), said)


def test_without_a_judgement_every_survivor_counts_against_the_score() -> None:
    found = judged()
    assert (found.found, found.started, found.counted, found.unjudged) == (2, 6, 6, 4)
    assert round(found.percent) == 33


def test_equivalent_and_unreachable_ones_are_taken_out() -> None:
    found = judged(
        c=Judgement(judgement="equivalent", why="."),
        d=Judgement(judgement="unreachable", dimension="sliding window", why="."),
        e=Judgement(judgement="hole", why="."),
    )
    assert (found.counted, found.holes, found.unjudged) == (4, 1, 1)
    assert (found.percent, found.unreachable_percent) == (50, 20)
    assert found.dimensions == {"sliding window": 1}


def test_a_change_over_which_the_target_failed_is_not_found() -> None:
    found = score(log_of(*FOUND, result("c", "failed", said="TargetFailed: no stream")), {})
    assert (found.found, found.started, found.unjudged) == (2, 3, 1)


def test_what_did_not_start_counts_for_nothing() -> None:
    found = score(log_of(*FOUND, result("c", "does_not_start")), {})
    assert (found.started, found.percent, found.does_not_start) == (2, 100, 1)


def test_a_score_of_nothing_is_no_division_by_zero() -> None:
    assert score(log_of(), {}).percent == 0


def test_each_survivor_gets_a_place_once(tmp_path: Path) -> None:
    path = tmp_path / judgements.NAME
    survivors = [mutant("c"), mutant("d", before='x = "\\"', after="pass")]
    judgements.add_places(path, survivors[:1], {})
    judgements.add_places(path, survivors, judgements.read(path))
    judgements.add_places(path, survivors, judgements.read(path))
    assert {name: one.judgement for name, one in judgements.read(path).items()} == {
        "c": "unjudged",
        "d": "unjudged",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[c]\njudgement = 'fine'\n", "Invalid enum value"),
        ("[c]\njudgement = 'equivalent'\n", "has no why"),
        ("[c]\njudgement = 'unreachable'\nwhy = 'x'\n", "names the dimension"),
        ("[c]\njudgement = 'hole'\nwhy = 'x'\ndimension = 'y'\n", "names the dimension"),
        ("[c]\njudgment = 'hole'\n", "unknown field"),
        ("[c]\n[c]\n", "no valid file"),
        ("c = [", "no valid file"),
    ],
)
def test_a_wrong_judgement_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / judgements.NAME
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        judgements.read(path)


def test_the_report_shows_each_survivor_with_its_lines_and_its_judgement() -> None:
    said = {"c": Judgement(judgement="unreachable", dimension="sliding window", why="never set")}
    text = report.markdown(score(log_of(*FOUND, result("c"), result("d")), said))
    assert "2 of 3 found (67%)" in text
    unjudged, unreachable = text.split("## Unreachable")
    assert "`d`" in unjudged.split("## Not judged yet")[1]
    assert "-x = 1\n+x = 2" in unreachable and "sliding window; never set" in unreachable


def test_nothing_of_the_engine_breaks_out_of_the_report() -> None:
    hostile = result("c", "found", buffer="a|b\n```<img>", said="x")
    text = report.markdown(score(log_of(hostile), {}))
    assert "<img>" not in text and "a\\|b" in text


def test_the_json_has_the_computed_figures() -> None:
    record = report.record(judged())
    assert (record["started"], record["counted"], record["percent"]) == (6, 6, 33.3)
