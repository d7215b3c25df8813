"""The model of CUTLASS's latent kernel, against dense attention, rules and refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.cutlass_mla import (
    cutlass_mla_decode,
    cutlass_mla_get_workspace_size,
)
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.latent_caches import HEADS, VALUE, WIDTH, ints, scattered, wanted

PAGE = 128


def _call(q: torch.Tensor, cache: torch.Tensor, **more: Any) -> torch.Tensor:
    size = cutlass_mla_get_workspace_size(512, 8)
    arguments = dict(
        q_nope=q[..., :VALUE], q_pe=q[..., VALUE:], kv_c_and_k_pe_cache=cache[:, :, 0],
        workspace=torch.empty(size, dtype=torch.uint8), sm_scale=0.3,
    )  # fmt: skip
    return cutlass_mla_decode(**{**arguments, **more})  # type: ignore[arg-type]


def test_rows_of_different_length_give_dense_attention() -> None:
    lens = [5, 128, 129, 300]
    cache, table = scattered(lens, PAGE)
    q = torch.randn(len(lens), HEADS, WIDTH)
    out = _call(q, cache, page_table=table, seq_lens=ints(*lens))
    want, _ = wanted(q[:, None], cache, table, lens, causal=False, scale=0.3)
    torch.testing.assert_close(out.double(), want[:, 0], rtol=1e-6, atol=1e-6)


def test_a_row_without_keys_is_left_as_it_was() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        cache, table = scattered([5, 0], PAGE)
        out = _call(torch.randn(2, HEADS, WIDTH), cache, page_table=table, seq_lens=ints(5, 0))
        written = out.clone()
    assert (written[0].abs() < 10).all() and not (written[1].abs() < 10).any()


def test_a_replay_reads_the_lengths_of_now() -> None:
    memory = GuardedMemory()
    graphs = Recorder(memory)
    cache, table = scattered([200], PAGE)
    with memory.intercept("engine"):
        q, lens = torch.randn(1, HEADS, WIDTH), ints(3)
    graph = graphs.capture(lambda: _call(q, cache, page_table=table, seq_lens=lens), key="decode/1")
    lens.fill_(200)
    with memory.over_lanes():
        graph.replay()
    want, _ = wanted(q[:, None], cache, table, [200], causal=False, scale=0.3)
    torch.testing.assert_close(graph.outputs.double(), want[:, 0], rtol=1e-6, atol=1e-6)


def test_a_row_longer_than_its_table_reads_the_next_rows_pages_and_is_recorded() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        cache, table = scattered([128, 128], PAGE)
        _call(torch.randn(2, HEADS, WIDTH), cache, page_table=table, seq_lens=ints(129, 5))
    (access,) = memory.lanes.report.take_accesses()
    assert (access.buffer, access.offset, access.kind) == ("page_table", 1, "read")


def test_a_workspace_for_fewer_rows_breaks_a_rule() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        cache, table = scattered([5, 5], PAGE)
        small = torch.empty(cutlass_mla_get_workspace_size(512, 1), dtype=torch.uint8)
        _call(
            torch.randn(2, HEADS, WIDTH), cache, page_table=table, seq_lens=ints(5, 5),
            workspace=small,
        )  # fmt: skip
    (misuse,) = memory.lanes.report.take_misuses()
    assert "workspace must hold the 128 bytes" in str(misuse) and "got 64" in str(misuse)


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"seq_lens": torch.tensor([5])}, "seq_lens must be int32; got int64"),
        ({"page_table": torch.ones(1, 1).long()}, "page_table must be int32"),
        ({"page_table": ints(1, 2).view(2, 1)}, "must have 1 rows, as many as q_nope; got 2"),
        ({"page_table": ints(1)}, "page_table must be 2D; got 1D"),
        (
            {"kv_c_and_k_pe_cache": torch.zeros(9, 64, WIDTH)},
            "must hold a positive multiple of 128 tokens; got 64",
        ),
        ({"q_pe": torch.zeros(1, HEADS, 5)}, "must be as wide as a cached row of 6 columns; got 9"),
        ({"q_pe": torch.zeros(1, 2, 2)}, "q_pe must have 1 rows and 3 heads"),
        ({"q_pe": torch.zeros(1, HEADS, 2).half()}, "q_pe must be float32; got float16"),
    ],
)  # fmt: skip
def test_what_the_host_code_refuses_is_refused(more: dict[str, Any], rule: str) -> None:
    cache, table = scattered([5], PAGE)
    given = {"page_table": table, "seq_lens": ints(5), **more}
    with pytest.raises(KernelRefused) as refused:
        _call(torch.randn(1, HEADS, WIDTH), cache, **given)
    assert re.search(rule, str(refused.value))
