"""Releases of FlashInfer are opened once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fuzzgraph import releases
from fuzzgraph.targets.packages import companions_of
from tests.targets.sglang.released import Workers


def _path(version: str) -> Path:
    missing = [name for name in companions_of("flashinfer") if find_spec(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed; run 'make flashinfer'")
    found = [entry for entry in releases.installed() if entry.package == "flashinfer-python"]
    paths = {entry.version: entry.path for entry in found}
    if version not in paths:
        wanted = f"flashinfer-python=={version}"
        pytest.skip(f"{wanted} is not in the cache; run 'fuzzgraph releases fetch {wanted}'")
    return paths[version]


@pytest.fixture(scope="session")
def flashinfers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    opened = Workers(tmp_path_factory.mktemp("flashinfer"), _path)
    yield opened
    opened.close()
