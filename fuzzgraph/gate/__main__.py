"""The process that records what a target executes; started by `executed`, with its socket."""

from __future__ import annotations

import sys

from fuzzgraph.gate.tracing import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]))
