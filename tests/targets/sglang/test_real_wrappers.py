"""Where FlashInfer is installed its own wrappers are read, which tell less than models of them."""

from __future__ import annotations

import torch

from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.flashinfer import Wrappers, buffers_of

_OFFSETS, _PAGES = torch.tensor([0, 2]), torch.tensor([5, 6])


def test_buffers_of_a_wrapper_without_a_list_are_found_by_name() -> None:
    real = Stub(_paged_kv_indptr_buf=_OFFSETS, _paged_kv_indices_buf=_PAGES, _custom_mask_buf=None)
    assert set(buffers_of(real)) == {"paged_kv_indptr", "paged_kv_indices"}
    read = Wrappers(("",))
    assert set(read.buffers([real])) == {"kv_indptr", "kv_indices"}
    assert read.planned([real]) == {}


def test_a_model_says_which_buffers_it_has_and_what_it_planned() -> None:
    model = Stub(
        _paged_kv_indptr_buf=_OFFSETS, _paged_kv_indices_buf=_PAGES,
        order=("paged_kv_indptr",), planned={"kv_indptr": [0, 2]},
    )  # fmt: skip
    read = Wrappers(("",))
    assert set(read.buffers([model])) == {"kv_indptr"}
    assert read.planned([model])["planned_kv_indptr"].tolist() == [0, 2]
