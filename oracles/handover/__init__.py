"""Clause "metadata and capture tell the truth": of all that is handed over, declared or not.

What a runner handed its backend and a backend its kernels is held against the same step without a
graph, against what the graph was captured with, and, where a kernel's model says what it means,
against the batch itself. A name is judged by nothing but what it shows; a target can only excuse
one, with a source.
"""

from fuzzgraph.oracles.handover.oracle import Handovers, excuses_needed

__all__ = ["Handovers", "excuses_needed"]
