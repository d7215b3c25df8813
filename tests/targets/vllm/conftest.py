"""Released vLLM is opened once for all tests of this folder: importing one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.targets.sglang.released import Workers, release_path


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    opened = Workers(tmp_path_factory.mktemp("vllm"), partial(release_path, package="vllm"))
    yield opened
    opened.close()
