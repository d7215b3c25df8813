"""Mutants: one-line changes of an engine's own Python, and which of them a target sees.

A target that finds nothing in a healthy engine may be blind. Here the engine is broken on purpose,
line by line, in code that the target runs while it captures and prepares replays, and the ordinary
search has to notice.
"""

from __future__ import annotations

from fuzzgraph.mutants.records import Judgement, Mutant, Outcome, Result, Sought
from fuzzgraph.mutants.run import run_mutants
from fuzzgraph.mutants.score import Score

__all__ = ["Judgement", "Mutant", "Outcome", "Result", "Score", "Sought", "run_mutants"]
