"""Shows a benchmark's page and, where it is asked to, writes it to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from fuzzgraph.corpus import write_atomically

__all__ = ["add_write", "publish"]


def add_write(parser: argparse.ArgumentParser) -> None:
    """The option that `publish` looks at."""
    parser.add_argument("--write", type=Path, help="file to write the page to as well")


def publish(page: str, asked: argparse.Namespace) -> None:
    """Print the page, and write it whole or not at all."""
    print(page)
    if asked.write:
        write_atomically(asked.write, page.encode())
