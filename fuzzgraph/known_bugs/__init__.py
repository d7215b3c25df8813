"""Bugs that released engines had: what they are, and whether the fuzzer finds them there.

How a release is fuzzed is the campaign's affair; the caller hands it in.
"""

from __future__ import annotations

from fuzzgraph.known_bugs.catalogue import Expectation, KnownBug, chosen, default_catalogue, load
from fuzzgraph.known_bugs.scoring import (
    BugScore,
    FuzzRelease,
    Other,
    ReleaseResult,
    Search,
    score,
    searches_for,
)
from fuzzgraph.known_bugs.subprocess_runner import SubprocessRunner, run_folder

__all__ = [
    "SubprocessRunner",
    "BugScore",
    "Expectation",
    "FuzzRelease",
    "KnownBug",
    "Other",
    "Search",
    "ReleaseResult",
    "chosen",
    "default_catalogue",
    "load",
    "run_folder",
    "score",
    "searches_for",
]
