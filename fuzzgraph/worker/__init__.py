"""Runs a target in a process of its own: cases go in as JSON, verdicts come back as JSON.

A child that dies or hangs becomes a finding of the survival oracle, with the stage it had entered;
it is started again for the next case. The case was on disk before it was sent.
"""

from __future__ import annotations

from fuzzgraph.worker.client import WorkerClient, WorkerFailed, open_client
from fuzzgraph.worker.limits import Limits

__all__ = ["Limits", "WorkerClient", "WorkerFailed", "open_client"]
