"""In place of FlashInfer's compiled modules: what they refuse, and what is told of a wrong call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.targets.flashinfer import compiled

ROWS, Q_HEADS, KV_HEADS, COLUMNS, PAGE = 2, 4, 2, 8, 2
_FLOATS = (torch.float32,) * 3


class Decode:
    """A module that decodes two rows of a page each, in guarded memory."""

    def __init__(self) -> None:
        self.memory = GuardedMemory(capacity=1 << 22)
        with self.memory.intercept("engine"):
            self.workspace = torch.zeros(4096, dtype=torch.uint8)
            self.indptr = torch.tensor([0, 1, 2], dtype=torch.int32)
            self.q = torch.ones(ROWS, Q_HEADS, COLUMNS)
            self.cache = torch.ones(4, PAGE, KV_HEADS, COLUMNS)
            self.indices = torch.tensor([2, 3], dtype=torch.int32)
            self.last = torch.ones(ROWS, dtype=torch.int32)
        self.module: Any = compiled._decode(
            *_FLOATS, torch.int32, COLUMNS, COLUMNS, 0, False, False
        )
        self.info: list[int] = []

    def plan(self, q_heads: Any = Q_HEADS, kv_heads: Any = KV_HEADS, page: Any = PAGE) -> None:
        self.info = self.module.plan(
            self.workspace, self.workspace, None, self.indptr, ROWS, q_heads, kv_heads, page,
            False, -1, 0.0, COLUMNS, COLUMNS,
        )  # fmt: skip

    def run(self, indptr: torch.Tensor | None = None, width: int = COLUMNS) -> None:
        with self.memory.intercept("engine"):
            out = torch.empty(ROWS, Q_HEADS, width)
            self.module.run(
                self.workspace, self.workspace, self.info, self.q, self.cache, self.cache,
                self.indptr if indptr is None else indptr, self.indices, self.last, out, None, 0,
                -1, False, None, 0.0, 1.0, 1.0, 1e4,
            )  # fmt: skip

    @property
    def misuses(self) -> list[str]:
        return [one.argument for one in self.memory.lanes.report.take_misuses()]


def test_a_plan_for_what_is_run_says_nothing() -> None:
    decode = Decode()
    decode.plan()
    decode.run()
    assert decode.misuses == []
    assert not decode.memory.lanes.report.take_accesses()


def test_a_plan_without_a_page_size_is_refused() -> None:
    with pytest.raises(KernelRefused, match="page_size"):
        Decode().plan(page=None)


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"q_heads": 8}, "num_qo_heads"),
        ({"kv_heads": 4}, "num_kv_heads"),
        ({"page": 4}, "page_size"),
    ],
)
def test_a_plan_for_other_sizes_than_the_runs_is_told(sizes: dict[str, int], name: str) -> None:
    decode = Decode()
    decode.plan(**sizes)
    decode.run()
    assert decode.misuses == [name]


def test_an_output_of_another_width_is_refused() -> None:
    decode = Decode()
    decode.plan()
    with pytest.raises(KernelRefused, match=r"o must be \[2, 4, 8\]"):
        decode.run(width=COLUMNS // 2)


def test_offsets_of_too_few_rows_are_read_beyond_their_end() -> None:
    decode = Decode()
    decode.plan()
    with decode.memory.intercept("engine"):
        short = decode.indptr[:2].clone()
    decode.run(indptr=short)
    assert "paged_kv_indptr" in str(decode.memory.lanes.report.take_accesses()[0])
