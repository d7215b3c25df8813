"""`python -m fuzzgraph` is the command `fuzzgraph`."""

from __future__ import annotations

from fuzzgraph.cli import main

if __name__ == "__main__":
    main()
