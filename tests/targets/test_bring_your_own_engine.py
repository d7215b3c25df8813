"""The page on an engine of one's own shows the files it speaks of, and they do what it says."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings

from fuzzgraph import releases
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.strategies import CI, cases

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, EXAMPLES = DOCS / "bring-your-own-engine.md", DOCS / "examples"
NAMES = ("block_engine", "block_target", "stale_target")

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="needs the repository")


@pytest.fixture(scope="module")
def examples() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(EXAMPLES))
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path.remove(str(EXAMPLES))
    for name in NAMES:
        del sys.modules[name]


def shown(file: str) -> str:
    """The code blocks that follow the comment with a file's name."""
    _, text = PAGE.read_text(encoding="utf-8").split(f"<!-- {file} -->")
    text = text.partition("<!--")[0]
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def squeezed(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip()]


@pytest.mark.parametrize("file", ["block_target.py", "stale_target.py"])
def test_the_page_shows_the_whole_file(file: str) -> None:
    assert squeezed(shown(file)) == squeezed((EXAMPLES / file).read_text(encoding="utf-8"))


def test_the_target_has_fewer_than_a_hundred_lines() -> None:
    lines = (EXAMPLES / "block_target.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 100


def test_the_engine_knows_nothing_of_the_fuzzer() -> None:
    code = "import sys, block_engine; print('fuzzgraph' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def findings_in(target: object, count: int) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    execution = Execution(target)  # type: ignore[arg-type]

    @settings(max_examples=count, database=None, deadline=None, derandomize=True)
    @given(cases(target.capabilities, CI))  # type: ignore[attr-defined]
    def collect(case: Case) -> None:
        found.update((f.oracle, f.buffer) for f in execution.run_case(case).findings)

    collect()
    return found


def test_the_engine_stays_silent_on_generated_cases(examples: dict[str, ModuleType]) -> None:
    assert not findings_in(examples["block_target"].BlockTarget(), 80)


def test_its_stale_twin_is_found_in_generated_cases(examples: dict[str, ModuleType]) -> None:
    found = findings_in(examples["stale_target"].StaleTarget(), 80)
    assert ("contract", "slot_mapping") in found


def test_the_cause_shows_in_the_case_of_the_page(examples: dict[str, ModuleType]) -> None:
    config = EngineConfig(capture_bs=(1, 3), max_context_len=3)

    def step(*lengths: int, finish: tuple[int, ...] = ()) -> ReplayStep:
        rows = tuple(BatchRow(request=name, seq_len=n) for name, n in enumerate(lengths))
        return ReplayStep(rows=rows, finish=finish)

    case = Case(
        schema_version=1, config=config, steps=(step(1, 1, 1), step(1, finish=(2,)), step(1, 3))
    )
    healthy = Execution(examples["block_target"].BlockTarget()).run_case(case)
    stale = Execution(examples["stale_target"].StaleTarget()).run_case(case)
    assert (healthy.findings, healthy.steps) == ((), 3)
    (written,) = (f for f in stale.findings if (f.oracle, f.buffer) == ("footprint", "cache.keys"))
    assert "KV slots [5] changed" in written.message


def test_a_batch_above_the_ladder_runs_eagerly(examples: dict[str, ModuleType]) -> None:
    rows = tuple(BatchRow(request=name, seq_len=2) for name in range(3))
    case = Case(
        schema_version=1, config=EngineConfig(capture_bs=(2,)), steps=(ReplayStep(rows=rows),)
    )
    verdict = Execution(examples["block_target"].BlockTarget()).run_case(case)
    assert (verdict.findings, verdict.steps, verdict.skipped) == ((), 1, "")


def column_of_notions(engine: str) -> set[str]:
    """The names in code that the last table of the page gives for one engine."""
    _, table = PAGE.read_text(encoding="utf-8").split("## One notion, three names")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    at = [header.partition("'")[0] for header in rows[0]].index(engine)
    return {name for row in rows[2:] for name in re.findall(r"`([^`]+)`", row[at])}


@pytest.mark.parametrize(
    ("engine", "package", "version"),
    [
        pytest.param("sglang", "sglang", "0.5.23", marks=pytest.mark.sglang),
        pytest.param("vLLM", "vllm", "0.33.0", marks=pytest.mark.vllm),
        pytest.param("FlashInfer", "flashinfer-python", "0.7.2", marks=pytest.mark.flashinfer),
    ],
)
def test_each_engine_has_the_names_that_the_page_gives_it(
    engine: str, package: str, version: str
) -> None:
    cached = {(each.package, each.version): each.path for each in releases.installed()}
    if (package, version) not in cached:
        pytest.skip(f"{package} {version} is not in the cache; run 'make engines'")
    missing = column_of_notions(engine)
    assert missing
    for file in cached[package, version].rglob("*.py"):
        text = file.read_text(encoding="utf-8", errors="ignore")
        missing = {name for name in missing if name not in text}
        if not missing:
            return
    assert not missing
