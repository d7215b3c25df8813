"""What FlashInfer's two wrappers for KV in pages share.

Source: FlashInfer 0.6.12, flashinfer/decode.py, prefill.py and utils.py.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.flashinfer.wrapper import SOURCE, Wrapper
from fuzzgraph.kernel_models.launch import ModelKernel, launch

__all__ = ["PLAN_DEFAULTS", "RUN_DEFAULTS", "PagedWrapper", "check_pages", "check_window",
           "followed", "rows_of", "seq_lens"]  # fmt: skip

PLAN_DEFAULTS = {"pos_encoding_mode": "NONE", "non_blocking": True, "use_fp16_qk_reduction": False,
          "token_pos_in_items_len": 0, "q_len_per_req": 1}  # fmt: skip
_IGNORED = ("non_blocking", "seq_lens", "seq_lens_q", "block_tables", "max_token_per_sequence",
            "max_sequence_kv", "rope_scale", "rope_theta")  # fmt: skip
"""What only other backends or positions in the kernel read."""
RUN_DEFAULTS = {"q_len_per_req": 1, "pos_encoding_mode": "NONE", "use_fp16_qk_reduction": False}


class PagedWrapper(Wrapper):
    """A wrapper over pages."""

    def _unpacked(self, caches: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as [pages, page_size, heads, columns], by strides (utils.py)."""
        k, v = self._pair(caches)
        rule = "k_cache and v_cache must have the same strides"
        self._call.needs(k.stride() == v.stride(), rule, f"{k.stride()} and {v.stride()}")
        for name, cache in (("k_cache", k), ("v_cache", v)):
            self._call.needs_contiguous_last(name, cache)
        if self._kv_layout == "HND":
            return k.transpose(1, 2), v.transpose(1, 2)
        return k, v

    def _pair(self, caches: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each with four dimensions, of a pair or of both in one (utils.py)."""
        call, layout = self._call, self._kv_layout
        if isinstance(caches, torch.Tensor):
            rule = "a paged_kv_cache of keys and values must have 4 or 5 dimensions"
            call.needs(caches.dim() in (4, 5), rule, list(caches.shape))
            caches = _five(caches, layout)
            rule = "a paged_kv_cache must have keys and values in its second dimension"
            call.needs(caches.shape[1] == 2, rule, list(caches.shape))
            k, v = caches.unbind(1)
            return k, v
        rule = "paged_kv_cache must be a tensor, or a tuple of keys and values"
        call.needs(isinstance(caches, tuple), rule, type(caches).__name__)
        call.needs(len(caches) == 2, rule, f"{len(caches)} of them")
        for name, cache in zip(("k_cache", "v_cache"), caches, strict=True):
            call.needs(isinstance(cache, torch.Tensor), f"{name} must be a tensor", cache)
            rule = f"{name} must have 3 or 4 dimensions"
            call.needs(cache.dim() in (3, 4), rule, list(cache.shape))
        return _four(caches[0], layout), _four(caches[1], layout)

    def _launch(
        self, kernel: ModelKernel, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        sm_scale: float, out: torch.Tensor, lse: torch.Tensor | None,
        qo_indptr: torch.Tensor | None, v_scale: float | None,
    ) -> torch.Tensor:  # fmt: skip
        for name in ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"):
            self._call.needs_dtype(name, self.buffer(name), torch.int32)
        self._call.needs_contiguous_last("q", q)
        launch(
            kernel,
            q=q,
            k_cache=k,
            v_cache=v,
            qo_indptr=qo_indptr,
            paged_kv_indptr=self.buffer("paged_kv_indptr"),
            paged_kv_indices=self.buffer("paged_kv_indices"),
            paged_kv_last_page_len=self.buffer("paged_kv_last_page_len"),
            custom_mask=self._custom_mask_buf,
            mask_indptr=self._mask_indptr_buf,
            sm_scale=sm_scale,
            out=out,
            lse=lse,
            **self._scalars(),
        )
        return _times(out, v_scale)

    def _launch_planned(
        self, kernel: ModelKernel, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        sm_scale: float, out: torch.Tensor, lse: torch.Tensor | None, v_scale: float | None,
    ) -> torch.Tensor:  # fmt: skip
        """The same by a kernel that finds offsets and lengths in the plan."""
        indices = self.buffer("paged_kv_indices")
        self._call.needs_dtype("paged_kv_indices", indices, torch.int32)
        self._call.needs_contiguous_last("q", q)
        launch(
            kernel, q=q, k_cache=k, v_cache=v, paged_kv_indices=indices, sm_scale=sm_scale,
            value_scale=1.0, out=out, lse=lse, **self._scalars(),
        )  # fmt: skip
        return _times(out, v_scale)


def _times(out: torch.Tensor, v_scale: float | None) -> torch.Tensor:
    """decode.py and prefill.py: an operation of its own behind the kernel."""
    if v_scale is not None and v_scale != 1.0:
        out *= v_scale
    return out


def _five(cache: torch.Tensor, layout: str) -> torch.Tensor:
    if cache.dim() == 4:  # a page of one token
        return cache.unsqueeze(2 if layout == "NHD" else 3)
    return cache


def _four(cache: torch.Tensor, layout: str) -> torch.Tensor:
    if cache.dim() == 3:  # a page of one token
        return cache.unsqueeze(1 if layout == "NHD" else 2)
    return cache


def rows_of(name: str, *offsets: Any, last_page_len: Any = None) -> int:
    """Rows of a graph, by the buffers that a wrapper is made with.

    Raises:
        KernelRefused: one is missing, or their sizes disagree.
    """
    call = Call(name, SOURCE)
    needed = offsets if last_page_len is None else (*offsets, last_page_len)
    for held in needed:
        call.needs(isinstance(held, torch.Tensor), "a graph's buffers must be tensors", held)
    rows = len(offsets[0]) - 1 if last_page_len is None else len(last_page_len)
    for held in offsets:
        rule = f"a graph's offsets must be {rows + 1}, one more than its rows"
        call.needs(len(held) == rows + 1, rule, len(held))
    return rows


def followed(others: dict[str, Any], pos_encoding_mode: str) -> dict[str, Any]:
    left = {name: value for name, value in others.items() if name not in _IGNORED}
    return {**left, "pos_encoding_mode": pos_encoding_mode}


def seq_lens(indptr: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """[rows] keys of each row, of which all pages but the last are full (page.py get_seq_lens)."""
    full = (indptr[1:] - indptr[:-1] - 1).clamp(min=0)
    return full * page_size + last_page_len


def check_pages(call: Call, indptr: torch.Tensor, last_page_len: torch.Tensor) -> None:
    """Refuse offsets and last pages that `seq_lens`, the host's own sum, cannot add up."""
    counts = max(len(indptr) - 1, 0), len(last_page_len)
    rule = "paged_kv_indptr must hold one offset more than paged_kv_last_page_len has entries"
    call.needs(counts[0] == counts[1] or 1 in counts, rule, f"{len(indptr)} and {counts[1]}")


def check_window(wrapper: Wrapper, window_left: int | None) -> None:
    rule = f"window_left must be the plan's, {wrapper._window_left}"
    wrapper._call.needs(window_left in (None, wrapper._window_left), rule, window_left)
