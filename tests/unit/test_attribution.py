"""What the search for memory to blame tells of thousands of places."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fuzzgraph.execution.attribution import Attribution, fewest
from fuzzgraph.finding import a_few_places
from fuzzgraph.memory import Perturbation


def blamed_of(places: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a search blames that no half has narrowed down."""
    names = {"experts"}
    candidates = [Perturbation(f"place {each}", lambda: None) for each in range(places)]
    unopened = cast("Any", None)
    search = Attribution(unopened, unopened, unopened)
    monkeypatch.setattr(search, "_bisect", lambda *given: given[2])
    monkeypatch.setattr(search, "_changed_by", lambda *given: names)
    seen = [SimpleNamespace(outputs={"experts": torch.tensor([n])}, metadata={}) for n in (1, 2)]
    step = cast("Any", SimpleNamespace(runs={"replay": seen[0], "other_world": seen[1]}))
    return search._find_blamed(step, unopened, candidates, "other_world")


def test_a_few_places_that_no_half_narrows_down_are_blamed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert blamed_of(2, monkeypatch) == {"experts": "place 0, place 1"}


def test_thousands_that_no_half_narrows_down_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blamed_of(3000, monkeypatch) == {}


def test_one_place_among_thousands_is_found_in_a_few_runs() -> None:
    candidates = [Perturbation(f"place {each}", lambda: None) for each in range(20000)]
    looked_at: list[int] = []

    def shows(part: list[Perturbation]) -> bool:
        looked_at.append(len(part))
        return candidates[12345] in part

    assert fewest(candidates, shows) == [candidates[12345]]
    assert len(looked_at) < 40


def test_two_places_that_show_only_together_stay_together() -> None:
    candidates = [Perturbation(f"place {each}", lambda: None) for each in range(8)]
    both = {candidates[3].region, candidates[4].region}
    found = fewest(candidates, lambda part: both <= {each.region for each in part})
    assert both <= {each.region for each in found}


def test_a_sentence_about_thousands_of_places_is_made_at_once() -> None:
    places = ", ".join(f"red zone of buffer{each}" for each in range(20000))
    began = time.perf_counter()
    assert a_few_places(places).endswith("buffer2 and 19997 more")
    assert time.perf_counter() - began < 5  # a walk to the end from each place took minutes
