"""The host's process; the only argument is the number of its socket."""

from __future__ import annotations

import sys

from fuzzgraph.mutants.host import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]))
