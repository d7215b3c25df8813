"""The AITER metadata of released sglang: condemned where it was wrong, acquitted where fixed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph import releases
from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from fuzzgraph.finding import Finding
from fuzzgraph.worker import WorkerClient, open_client

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

_DECODE = "sglang-aiter"
_VERIFY = "sglang-aiter-verify"
_COMPANIONS = ("transformers", "dill", "einops", "openai", "psutil", "pydantic", "tqdm")


def release_path(version: str) -> Path:
    """Folder of a release that lies in the cache; the test is skipped where it does not."""
    missing = [name for name in _COMPANIONS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed; run 'make sglang'")
    found = [entry for entry in releases.installed() if entry.package == "sglang"]
    paths = {entry.version: entry.path for entry in found}
    if version not in paths:
        pytest.skip(f"sglang {version} is not in the cache; run 'make sglang'")
    return paths[version]


class Workers:
    """One child per release and target, started when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[tuple[str, str], WorkerClient] = {}

    def findings(self, version: str, case: Case, target: str = _DECODE) -> tuple[Finding, ...]:
        key = (version, target)
        if key not in self._open:
            folder = self._folder / f"{version}-{len(self._open)}"
            self._open[key] = open_client(target, paths=[release_path(version)], folder=folder)
        verdict = self._open[key].run_case(case)
        assert verdict.skipped == ""
        return verdict.findings

    def close(self) -> None:
        for client in self._open.values():
            client.close()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    opened = Workers(tmp_path_factory.mktemp("releases"))
    yield opened
    opened.close()


def decode_case(*batches: tuple[int, ...], mode: Mode = "decode", **settings: Any) -> Case:
    """Steps with rows of these lengths; each step has requests of its own, its rows are reused."""
    new = 2 if mode == "target_verify" else 1
    steps = tuple(
        ReplayStep(
            mode=mode,
            rows=tuple(
                BatchRow(request=100 * index + row, seq_len=length, new_tokens=new)
                for row, length in enumerate(lengths)
            ),
            finish=tuple(100 * (index - 1) + row for row in range(len(batches[index - 1])))
            if index
            else (),
        )
        for index, lengths in enumerate(batches)
    )
    config = EngineConfig(
        **{
            "modes": (mode,), "capture_bs": (1, 2, 4), "max_context_len": 64,
            "kv_pool_pages": 300, **settings,
        }
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=steps))


_FULL = (64, 64, 64, 64)


@pytest.mark.parametrize("version", ["0.5.10", "0.5.11", "0.5.12"])
def test_pages_for_tokens_overrun_kv_indices(workers: Workers, version: str) -> None:
    first = workers.findings(version, decode_case(_FULL, page_size=16))[0]
    assert (first.oracle, first.buffer) == ("footprint", "backend.cuda_graph_kv_indices")
    assert (first.detail["payload"], first.detail["elements"]) == (16, 240)
    assert "aiter_backend.py" in str(first.detail["allocated_at"])
    assert "init_cuda_graph_state" in str(first.detail["allocated_at"])


@pytest.mark.parametrize(
    ("version", "page_size"), [("0.5.12", 1), ("0.5.13", 1), ("0.5.13", 16), ("0.5.13", 64)]
)
def test_enough_room_for_kv_indices_is_no_finding(
    workers: Workers, version: str, page_size: int
) -> None:
    assert workers.findings(version, decode_case(_FULL, page_size=page_size)) == ()


@pytest.mark.parametrize("version", ["0.5.10", "0.5.11", "0.5.12"])
def test_padded_rows_that_follow_an_old_request_are_found(workers: Workers, version: str) -> None:
    found = workers.findings(version, decode_case((5, 6, 7, 8), (5, 6, 7)))
    seen = {(finding.oracle, finding.buffer) for finding in found}
    assert ("contract", "req_pool_indices") in seen
    assert ("history", "kv_indices") in seen


def test_padded_rows_on_the_padding_row_are_no_finding(workers: Workers) -> None:
    assert workers.findings("0.5.13", decode_case((5, 6, 7, 8), (5, 6, 7))) == ()


def test_a_capture_beyond_the_pool_fails_where_buffers_were_sized_by_the_pool(
    workers: Workers,
) -> None:
    case = decode_case((5, 6), capture_bs=(2, 8), req_pool_size=5)
    (finding,) = workers.findings("0.5.10", case)
    assert (finding.oracle, finding.stage) == ("survival", "capture")
    assert "aiter_backend.py" in finding.message


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
def test_a_capture_beyond_the_pool_works_where_they_are_not(workers: Workers, version: str) -> None:
    case = decode_case((5, 6), capture_bs=(2, 8), req_pool_size=5)
    assert workers.findings(version, case) == ()


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
@pytest.mark.parametrize("attention", ["mha", "mla"])
def test_a_full_batch_of_one_token_pages_is_healthy(
    workers: Workers, version: str, attention: str
) -> None:
    case = decode_case((5, 6, 7, 8), attention=attention, v_head_dim=2)
    assert workers.findings(version, case) == ()


def test_page_tables_of_unified_attention_are_healthy(workers: Workers) -> None:
    case = decode_case((5, 6, 7, 8), (17, 3), page_map="page_table", page_size=4)
    assert workers.findings("0.5.13", case) == ()


def test_one_token_pages_never_reach_the_unified_page_table(workers: Workers) -> None:
    """Open in every release looked at: only the branch for larger pages copies (PR 34833)."""
    found = workers.findings("0.5.13", decode_case((5, 6), page_map="page_table"))
    assert ("contract", "page_table") in {(entry.oracle, entry.buffer) for entry in found}


@pytest.mark.parametrize("page_map", ["csr", "page_table"])
def test_target_verify_is_healthy_with_padded_rows(workers: Workers, page_map: str) -> None:
    case = decode_case(
        (5, 6, 7, 8), (5, 6, 7), mode="target_verify", page_map=page_map, page_size=4
    )
    assert workers.findings("0.5.13", case, target=_VERIFY) == ()


def test_a_batch_above_the_ladder_goes_eager(workers: Workers) -> None:
    case = decode_case((5, 6, 7, 8), capture_bs=(1, 2))
    assert workers.findings("0.5.13", case) == ()
