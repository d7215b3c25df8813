"""The page's engine for GPUs runs behind the ports without one, and its stale twin is found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.run.events import Setup
from fuzzgraph.strategies import CI, cases, generation
from fuzzgraph.worker import WorkerClient, open_client

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, EXAMPLES = DOCS / "writing-a-target.md", DOCS / "examples"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="needs the repository")


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerClient]:
    monkeypatch.chdir(EXAMPLES)
    opened = open_client(Setup(target="gpu_target:GpuTarget"), paths=[EXAMPLES], folder=tmp_path)
    yield opened
    opened.close()


def step(*lengths: int, finish: tuple[int, ...] = ()) -> ReplayStep:
    rows = tuple(BatchRow(request=name, seq_len=n) for name, n in enumerate(lengths))
    return ReplayStep(rows=rows, finish=finish)


def test_the_page_shows_the_whole_target() -> None:
    text = PAGE.read_text(encoding="utf-8").split("<!-- gpu_target.py -->")[1]
    shown = "\n".join(re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    file = (EXAMPLES / "gpu_target.py").read_text(encoding="utf-8")
    assert shown.split() == file.split()


def test_the_engine_is_judged_and_its_stale_twin_is_found(worker: WorkerClient) -> None:
    config = EngineConfig(capture_bs=(1, 3), max_context_len=8)
    fewer = Case(schema_version=1, config=config, steps=(step(5, 2, 1), step(6, 3, finish=(2,))))
    drawn = [fewer]
    capabilities = Capabilities(page_sizes=(1, 16), max_batch=4, eager_steps=False)
    generation.draw(cases(capabilities, CI), 1, 12, drawn.append)
    verdicts = [worker.run_case(case) for case in drawn]
    assert [verdict.findings for verdict in verdicts if verdict.findings or verdict.skipped] == []
    assert sum(verdict.steps for verdict in verdicts) > 12
    worker.retarget("gpu_target:StaleTarget")
    found = {(f.oracle, f.buffer, f.step) for f in worker.run_case(fewer).findings}
    assert ("contract", "req_pool_indices", 1) in found
