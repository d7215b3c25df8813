"""The command `fuzzgraph`: arguments in, exit code out."""

from __future__ import annotations

from fuzzgraph.cli.entry import main

__all__ = ["main"]
