"""Every case of the corpus keeps the law on the healthy engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuzzgraph
from fuzzgraph import corpus

CASES = Path(__file__).resolve().parents[2] / "corpus" / "cases"
LOADED = corpus.load(CASES) if CASES.is_dir() else corpus.Loaded()

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="needs the repository")


@pytest.mark.parametrize("entry", LOADED.entries, ids=lambda entry: entry.path.stem)
def test_a_saved_case_keeps_the_law(entry: corpus.Entry) -> None:
    fuzzgraph.check(entry.case)


def test_every_file_of_the_corpus_is_a_case() -> None:
    assert LOADED.bad_lines == []


def test_no_case_is_saved_twice() -> None:
    assert len({entry.digest for entry in LOADED.entries}) == len(LOADED.entries)


def test_the_corpus_goes_through_every_mode() -> None:
    modes = {step.mode for entry in LOADED.entries for step in entry.case.steps}
    assert modes == {"decode", "target_verify", "draft_extend", "draft", "prefill", "idle"}
