"""Entry point of the child; the parent runs `python -m fuzzgraph.worker SOCKET STAGE_FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from fuzzgraph.worker.serve import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
