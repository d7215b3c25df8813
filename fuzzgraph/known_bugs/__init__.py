"""Bugs that released engines had: what they are, and whether the fuzzer finds them there.

How a release is fuzzed is the campaign's affair; the caller hands it in.
"""

from __future__ import annotations

from fuzzgraph.known_bugs.apart import Apart, run_folder
from fuzzgraph.known_bugs.catalogue import Expectation, KnownBug, chosen, default_catalogue, load
from fuzzgraph.known_bugs.scoring import (
    BugScore,
    Hunt,
    Other,
    Search,
    Sighting,
    score,
    searches_for,
)

__all__ = [
    "Apart",
    "BugScore",
    "Expectation",
    "Hunt",
    "KnownBug",
    "Other",
    "Search",
    "Sighting",
    "chosen",
    "default_catalogue",
    "load",
    "run_folder",
    "score",
    "searches_for",
]
