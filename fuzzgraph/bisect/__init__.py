"""Where a finding came in and where it went: over the releases of an engine, or over commits.

Half of what is left is ruled out by each run, so that a few runs do for a long history.
"""

from __future__ import annotations

from fuzzgraph.bisect.commits import commit_line
from fuzzgraph.bisect.line import Line, Point
from fuzzgraph.bisect.records import Answer, Bisection, Boundary
from fuzzgraph.bisect.releases import release_line
from fuzzgraph.bisect.run import bisect

__all__ = [
    "Answer",
    "Bisection",
    "Boundary",
    "Line",
    "Point",
    "bisect",
    "commit_line",
    "release_line",
]
