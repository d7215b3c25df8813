"""Both paged attention kernels against attention computed key by key in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from fuzzgraph.targets.builtin.attention import AttentionBatch, kernel
from tests.targets.builtin.attention.launches import Launch, Shape, draw, expected

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}

SHAPES = {
    "decode": Shape(),
    "decode with the query offsets given": Shape(q_lens=(1, 1, 1)),
    "no keys at all": Shape(kv_lens=(0, 0)),
    "one key": Shape(kv_lens=(1,)),
    "grouped heads": Shape(q_heads=6, kv_heads=2, head_dim=5, v_head_dim=3),
    "one head each": Shape(q_heads=3, kv_heads=3, head_dim=1, v_head_dim=1),
    "latent": Shape(q_heads=4, head_dim=6, v_head_dim=4, latent=True),
    "latent in fp8": Shape(q_heads=4, head_dim=6, latent=True, fp8=True, dtype=torch.bfloat16),
    "fp8": Shape(fp8=True),
    "fp8 under float16": Shape(fp8=True, dtype=torch.float16, page_map="page_table", page_size=4),
    "bfloat16": Shape(dtype=torch.bfloat16, head_dim=16, v_head_dim=16),
    "float16": Shape(dtype=torch.float16),
    "pages of one token": Shape(page_map="page_table"),
    "pages of four": Shape(page_map="page_table", page_size=4, kv_lens=(8, 0, 5, 4)),
    "pages of three under a window": Shape(page_map="page_table", page_size=3, window=4),
    "window wider than the keys": Shape(window=30),
    "window of one": Shape(window=1, kv_lens=(1, 2, 3)),
    "ragged queries, one row without": Shape(q_lens=(2, 0, 3), kv_lens=(2, 4, 7)),
    "first row without queries": Shape(q_lens=(0, 2, 0), kv_lens=(3, 4, 0)),
    "tokens of no row": Shape(q_lens=(2, 0, 3), kv_lens=(2, 4, 7), spare_tokens=2),
    "ragged queries, pages and window": Shape(
        q_lens=(2, 0, 3), kv_lens=(2, 4, 7), page_map="page_table", page_size=4, window=2
    ),
    "more queries than keys": Shape(q_lens=(3, 1), kv_lens=(1, 0)),
    "mask": Shape(q_lens=(2, 1, 3), kv_lens=(4, 1, 7), masked=True),
    "mask in decode": Shape(masked=True),
    "mask and an unused window": Shape(q_lens=(2, 3), kv_lens=(4, 7), masked=True, window=1),
    "cross attention": Shape(q_lens=(2, 1, 3), kv_lens=(4, 0, 7), causal=False),
    "split": Shape(chunk=3),
    "split in single keys": Shape(chunk=1, kv_lens=(3, 0, 2)),
    "split wider than the keys": Shape(chunk=16),
    "split under a window": Shape(chunk=2, window=2),
    "split pages": Shape(chunk=3, page_map="page_table", page_size=2, dtype=torch.float16),
    "split mask": Shape(q_lens=(2, 1, 3), kv_lens=(4, 0, 7), masked=True, chunk=2, spare_tokens=1),
    "split ragged queries": Shape(q_lens=(2, 0, 3), kv_lens=(4, 1, 7), chunk=4, window=2),
}


@pytest.fixture(params=["torch", "triton"])
def attend(request: pytest.FixtureRequest) -> Callable[[Launch], torch.Tensor]:
    """Runs a launch on one kernel and returns `out`."""
    if request.param == "triton":
        if find_spec("triton") is None:
            pytest.skip("Triton is not installed")
        if torch.cuda.is_available():
            pytest.skip("Triton compiles here; these launches lie in host memory")
    run = kernel(request.param)

    def attended(launch: Launch) -> torch.Tensor:
        run(launch.q, launch.k, launch.v, launch.out, launch.batch)
        return launch.out

    return attended


@pytest.mark.parametrize("name", SHAPES)
def test_a_launch_computes_what_attention_defines(
    name: str, attend: Callable[[Launch], torch.Tensor]
) -> None:
    shape = SHAPES[name]
    launch = draw(shape, seed=sum(map(ord, name)))

    out = attend(launch)

    error = (out.double() - expected(launch)).abs()
    assert float(error.max()) <= TOLERANCE[shape.dtype]


@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_length_is_noticed_by_the_comparison(
    seed: int, attend: Callable[[Launch], torch.Tensor]
) -> None:
    launch = draw(Shape(), seed)
    lens = launch.batch.kv_lens.clone()
    lens[0] -= 1
    right = expected(launch)
    launch.batch = replace(launch.batch, kv_lens=lens)

    assert float((attend(launch).double() - right).abs().max()) > 1e-3


def test_a_query_that_sees_nothing_gives_zeros(
    attend: Callable[[Launch], torch.Tensor],
) -> None:
    launch = draw(Shape(kv_lens=(0, 3)), seed=1)

    assert attend(launch)[0].eq(0).all()


def test_queries_past_the_launch_size_are_not_computed(
    attend: Callable[[Launch], torch.Tensor],
) -> None:
    launch = draw(Shape(q_lens=(3, 1), kv_lens=(5, 4)), seed=2)
    launch.batch = replace(launch.batch, max_q_len=2)

    out = attend(launch)

    assert out[2].eq(77).all()
    assert not out[[0, 1, 3]].eq(77).any()


def test_keys_past_the_launch_size_are_not_looked_at(
    attend: Callable[[Launch], torch.Tensor],
) -> None:
    launch = draw(Shape(kv_lens=(6,)), seed=3)
    launch.batch = replace(launch.batch, max_kv_len=4)
    shorter = replace(launch.batch, kv_lens=torch.tensor([4], dtype=torch.int32), max_kv_len=9)
    want = attend(replaced(launch, shorter)).clone()

    assert torch.equal(attend(launch), want)


def test_new_lengths_reach_a_launch_through_the_same_tensors(
    attend: Callable[[Launch], torch.Tensor],
) -> None:
    launch = draw(Shape(kv_lens=(6, 6)), seed=4)
    before = attend(launch).clone()
    launch.batch.kv_lens[1] = 2

    after = attend(launch)

    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


def test_the_torch_kernel_reads_past_a_buffer_without_an_error() -> None:
    launch = draw(Shape(kv_lens=(2,)), seed=5)
    indices = launch.batch.kv_indices
    assert indices is not None
    storage = indices.as_strided((indices.numel() + 4,), (1,), indices.storage_offset())
    storage[:] = int(indices[0])
    lens = torch.tensor([5], dtype=torch.int32)  # three more entries than the buffer has
    launch.batch = replace(launch.batch, kv_lens=lens)

    kernel("torch")(launch.q, launch.k, launch.v, launch.out, launch.batch)

    assert torch.allclose(launch.out[0], launch.v[int(indices[0]), 0].expand(2, -1))


def replaced(launch: Launch, batch: AttentionBatch) -> Launch:
    return replace(launch, batch=batch)
