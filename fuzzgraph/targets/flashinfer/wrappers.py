"""How a server makes, plans and runs each of FlashInfer's wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.targets.flashinfer.caller import Paged, queries_each
from fuzzgraph.targets.flashinfer.release import FLASHINFER

__all__ = ["KINDS", "Buffers", "Kind"]

Caches = tuple[torch.Tensor, ...]


@dataclass(slots=True)
class Buffers:
    """Memory that the wrappers of all sizes share; each takes its first rows."""

    workspace: torch.Tensor
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    last_page_len: torch.Tensor
    kv_lens: torch.Tensor
    mask: torch.Tensor | None
    mask_indptr: torch.Tensor | None


class Kind:
    """One of the wrappers. A method that takes `rows` makes what a graph of so many needs."""

    about: str
    module: str
    wrapper: str
    attention = "mha"
    buffers: dict[str, str]
    """Field -> attribute of a wrapper that its kernels read."""
    planned: tuple[str, ...] = ("planned_kv_indptr",)
    """Fields that are read of the plan."""
    page_sizes: tuple[int, ...] = (1, 2, 16)
    kv_dtypes: tuple[str, ...] = ("auto", "float8_e4m3fn")
    max_topk = 1
    """Branches of the trees that a verify's mask says."""
    mask_buffers = False
    """Whether a graph's wrapper has a mask's buffers where no mask is given."""
    fill_values: tuple[int, ...] = (0, 1)
    """What a server may give padded rows: see `caller`."""

    def load(self) -> Any:
        return getattr(FLASHINFER.module(self.module), self.wrapper)

    def for_graph(self, held: Buffers, rows: int) -> Any:
        """A wrapper with `use_cuda_graph=True`."""
        raise NotImplementedError

    def without_graph(self, held: Buffers) -> Any:
        return self.load()(held.workspace)

    def plan(self, wrapper: Any, batch: Paged, config: EngineConfig, device: Any) -> None:
        raise NotImplementedError

    def run(self, wrapper: Any, q: torch.Tensor, caches: Caches, config: EngineConfig) -> Any:
        return wrapper.run(q, caches, **_scales(config))


def _scales(config: EngineConfig) -> dict[str, float]:
    """Of keys and values in FP8."""
    content = content_for(config)
    if config.kv_dtype == "auto":
        return {}
    return {"k_scale": content.k_scale, "v_scale": content.v_scale}


class Decode(Kind):
    """One query in each row. Servers give offsets and lengths on the host, indices on the device
    (vLLM v1/attention/backends/flashinfer.py)."""

    about = "BatchDecodeWithPagedKVCacheWrapper"
    module, wrapper = "flashinfer.decode", "BatchDecodeWithPagedKVCacheWrapper"
    buffers = {
        "kv_indptr": "_paged_kv_indptr_buf",
        "kv_indices": "_paged_kv_indices_buf",
        "kv_last_page_len": "_paged_kv_last_page_len_buf",
    }

    def options(self) -> dict[str, Any]:
        """What chooses the kernel."""
        return {}

    def for_graph(self, held: Buffers, rows: int) -> Any:
        return self.load()(
            held.workspace,
            use_cuda_graph=True,
            **self.options(),
            paged_kv_indptr_buffer=held.kv_indptr[: rows + 1],
            paged_kv_indices_buffer=held.kv_indices,
            paged_kv_last_page_len_buffer=held.last_page_len[:rows],
        )

    def without_graph(self, held: Buffers) -> Any:
        return self.load()(held.workspace, **self.options())

    def plan(self, wrapper: Any, batch: Paged, config: EngineConfig, device: Any) -> None:
        content = content_for(config)
        wrapper.plan(
            batch.kv_indptr, batch.kv_indices.to(device), batch.last_page_len,
            config.num_q_heads, config.num_kv_heads, config.head_dim, config.page_size,
            q_data_type=content.dtype, kv_data_type=content.storage_dtype,
            **self.planned_with(wrapper, config),
        )  # fmt: skip

    def planned_with(self, wrapper: Any, config: EngineConfig) -> dict[str, Any]:
        """What else a plan is told."""
        return {}


class DecodeTensorCores(Decode):
    """The same by the prefill's kernel."""

    about = "BatchDecodeWithPagedKVCacheWrapper on tensor cores"
    planned = ("planned_kv_indptr", "planned_qo_indptr")
    buffers = Decode.buffers | {"qo_indptr": "_qo_indptr_buf"}

    def options(self) -> dict[str, Any]:
        return {"use_tensor_cores": True}


class DecodeVerify(DecodeTensorCores):
    """The same for as many queries in each row as a graph was captured with, causal.

    `plan` is told how many there are; before 0.6.14 it is `run`. Rows have keys for all their
    queries, which later releases demand.
    """

    about = "BatchDecodeWithPagedKVCacheWrapper"
    fill_values = (1,)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "backend": "fa2"}  # the one that has it

    def planned_with(self, wrapper: Any, config: EngineConfig) -> dict[str, Any]:
        count = {_QUERIES: queries_each(config)}
        return count if _takes(wrapper.plan, _QUERIES) else {}

    def run(self, wrapper: Any, q: torch.Tensor, caches: Caches, config: EngineConfig) -> Any:
        if _takes(wrapper.plan, _QUERIES):
            return super().run(wrapper, q, caches, config)
        return wrapper.run(q, caches, **{_QUERIES: queries_each(config)}, **_scales(config))


_QUERIES = "q_len_per_req"


def _takes(function: Callable[..., Any], name: str) -> bool:
    known = inspect.signature(function).parameters.values()
    return any(name == each.name or each.kind is each.VAR_KEYWORD for each in known)


class DecodeTrtllmGen(Decode):
    """The same by TensorRT-LLM's kernels, which read a page table that a plan makes of the list.

    Servers that use these kernels call them without the wrapper.
    """

    about = "BatchDecodeWithPagedKVCacheWrapper with trtllm-gen"
    planned = ()
    page_sizes = (16,)  # FlashInfer decode.py: 16, 32, 64
    kv_dtypes = ("auto",)
    buffers = {
        **Decode.buffers,
        "block_tables": "_block_tables",
        "kv_lens_buffer": "_kv_lens_buffer",
        "counters": "_trtllm_gen_multi_ctas_kv_counter_buffer",
    }

    def options(self) -> dict[str, Any]:
        # With a graph the constructor makes what `run` reads for this flag alone.
        return {"backend": "trtllm-gen", "use_tensor_cores": True}


class Prefill(Kind):
    """Several queries in each row, by a triangle or a mask; all on the device, as the wrapper's
    own example has it."""

    about = "BatchPrefillWithPagedKVCacheWrapper"
    module, wrapper = "flashinfer.prefill", "BatchPrefillWithPagedKVCacheWrapper"
    planned = DecodeTensorCores.planned
    buffers = DecodeTensorCores.buffers
    max_topk = 2

    def for_graph(self, held: Buffers, rows: int) -> Any:
        return self.load()(
            held.workspace,
            use_cuda_graph=True,
            qo_indptr_buf=held.qo_indptr[: rows + 1],
            paged_kv_indptr_buf=held.kv_indptr[: rows + 1],
            paged_kv_indices_buf=held.kv_indices,
            paged_kv_last_page_len_buf=held.last_page_len[:rows],
            custom_mask_buf=held.mask,
            mask_indptr_buf=None if held.mask_indptr is None else held.mask_indptr[: rows + 1],
        )

    def plan(self, wrapper: Any, batch: Paged, config: EngineConfig, device: Any) -> None:
        content = content_for(config)
        wrapper.plan(
            batch.qo_indptr.to(device), batch.kv_indptr.to(device), batch.kv_indices.to(device),
            batch.last_page_len.to(device), config.num_q_heads, config.num_kv_heads,
            config.head_dim, config.page_size, causal=True,
            **({} if batch.mask is None else self.masked(batch.mask.to(device), batch)),
            q_data_type=content.dtype, kv_data_type=content.storage_dtype,
            **self.planned_with(config),
        )  # fmt: skip

    def planned_with(self, config: EngineConfig) -> dict[str, int]:
        """What else a plan is told."""
        return {}

    def masked(self, mask: torch.Tensor, batch: Paged) -> dict[str, torch.Tensor]:
        """The mask as arguments of a plan."""
        return {"custom_mask": mask}


class PrefillPackedMask(Prefill):
    """The same where the caller has packed a tree's mask, each row from a whole byte on."""

    about = "BatchPrefillWithPagedKVCacheWrapper (packed)"

    def masked(self, mask: torch.Tensor, batch: Paged) -> dict[str, torch.Tensor]:
        pack = FLASHINFER.module("flashinfer.quantization").segment_packbits
        sizes = batch.qo_indptr.diff() * batch.kv_lens
        indptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int().to(mask.device)
        return {"packed_custom_mask": pack(mask, indptr, bitorder="little")[0]}


class PrefillMaxLen(Prefill):
    """The same where the caller says how many queries the longest row has."""

    about = "BatchPrefillWithPagedKVCacheWrapper (max len)"

    def planned_with(self, config: EngineConfig) -> dict[str, int]:
        return {"max_token_per_sequence": queries_each(config)}


class PrefillMaskBuffers(Prefill):
    """The same for chains alone, by wrappers that could take a mask too: a server that verifies
    trees and chains makes them so."""

    about = "BatchPrefillWithPagedKVCacheWrapper (no mask)"
    max_topk = 1
    mask_buffers = True


class Latent(Kind):
    """Latent attention, of one query in each row or several, causal to the bottom right."""

    about = "BatchMLAPagedAttentionWrapper"
    module, wrapper = "flashinfer.mla", "BatchMLAPagedAttentionWrapper"
    attention = "mla"
    kv_dtypes = ("auto",)
    planned = ("planned_kv_indptr", "planned_qo_indptr", "planned_kv_len")
    buffers = {
        "qo_indptr": "_qo_indptr_buf",
        "kv_indptr": "_kv_indptr_buf",
        "kv_indices": "_kv_indices_buf",
        "kv_len_arr": "_kv_len_arr_buf",
    }

    def for_graph(self, held: Buffers, rows: int) -> Any:
        return self.load()(
            held.workspace,
            use_cuda_graph=True,
            qo_indptr=held.qo_indptr[: rows + 1],
            kv_indptr=held.kv_indptr[: rows + 1],
            kv_indices=held.kv_indices,
            kv_len_arr=held.kv_lens[:rows],
        )

    def plan(self, wrapper: Any, batch: Paged, config: EngineConfig, device: Any) -> None:
        content = content_for(config)
        csr: dict[str, Any] = {
            "qo_indptr": batch.qo_indptr.to(device),
            "kv_indptr": batch.kv_indptr.to(device),
            "kv_indices": batch.kv_indices.to(device),
            "kv_len_arr": batch.kv_lens.to(device),
        }
        metadata = getattr(FLASHINFER.module(self.module), "MLAPlanMetadata", None)
        if metadata is not None:  # by name, and in one record
            csr = {"metadata": metadata.csr(**csr), "query_layout": "split",
                   "kv_cache_layout": "split"}  # fmt: skip
        wrapper.plan(
            **csr, num_heads=config.num_q_heads, head_dim_ckv=config.v_head_dim,
            head_dim_kpe=config.head_dim - config.v_head_dim, page_size=config.page_size,
            causal=queries_each(config) > 1, sm_scale=config.head_dim**-0.5,
            q_data_type=content.dtype, kv_data_type=content.storage_dtype,
        )  # fmt: skip

    def run(self, wrapper: Any, q: torch.Tensor, caches: Caches, config: EngineConfig) -> Any:
        rank = config.v_head_dim
        # The absorbed part comes out of a product, and is a tensor of its own.
        query = (q[..., :rank].contiguous(), q[..., rank:].contiguous())
        cache = (caches[0][..., :rank], caches[0][..., rank:])
        if hasattr(FLASHINFER.module(self.module), "MLAPlanMetadata"):
            return wrapper.run(query=query, kv_cache=cache)
        return wrapper.run(*query, *cache)


KINDS: dict[str, Kind] = {
    "decode": Decode(),
    "decode_tensor_cores": DecodeTensorCores(),
    "decode_verify": DecodeVerify(),
    "decode_trtllm_gen": DecodeTrtllmGen(),
    "prefill": Prefill(),
    "prefill_packed_mask": PrefillPackedMask(),
    "prefill_max_len": PrefillMaxLen(),
    "prefill_mask_buffers": PrefillMaskBuffers(),
    "mla": Latent(),
}
