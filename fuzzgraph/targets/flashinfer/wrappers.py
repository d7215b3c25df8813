"""How a server makes, plans and runs each of FlashInfer's wrappers."""

from __future__ import annotations

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
        content = content_for(config)
        scales = {}
        if config.kv_dtype != "auto":
            scales = {"k_scale": content.k_scale, "v_scale": content.v_scale}
        return wrapper.run(q, caches, **scales)


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
    tensor_cores = False

    def for_graph(self, held: Buffers, rows: int) -> Any:
        return self.load()(
            held.workspace,
            use_cuda_graph=True,
            use_tensor_cores=self.tensor_cores,
            paged_kv_indptr_buffer=held.kv_indptr[: rows + 1],
            paged_kv_indices_buffer=held.kv_indices,
            paged_kv_last_page_len_buffer=held.last_page_len[:rows],
        )

    def without_graph(self, held: Buffers) -> Any:
        return self.load()(held.workspace, use_tensor_cores=self.tensor_cores)

    def plan(self, wrapper: Any, batch: Paged, config: EngineConfig, device: Any) -> None:
        content = content_for(config)
        wrapper.plan(
            batch.kv_indptr, batch.kv_indices.to(device), batch.last_page_len,
            config.num_q_heads, config.num_kv_heads, config.head_dim, config.page_size,
            q_data_type=content.dtype, kv_data_type=content.storage_dtype,
        )  # fmt: skip


class DecodeTensorCores(Decode):
    """The same by the prefill's kernel."""

    about = "BatchDecodeWithPagedKVCacheWrapper on tensor cores"
    tensor_cores = True
    planned = ("planned_kv_indptr", "planned_qo_indptr")
    buffers = Decode.buffers | {"qo_indptr": "_qo_indptr_buf"}


class Prefill(Kind):
    """Several queries in each row, by a triangle or a mask; all on the device, as the wrapper's
    own example has it."""

    about = "BatchPrefillWithPagedKVCacheWrapper"
    module, wrapper = "flashinfer.prefill", "BatchPrefillWithPagedKVCacheWrapper"
    planned = DecodeTensorCores.planned
    buffers = DecodeTensorCores.buffers

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
            custom_mask=None if batch.mask is None else batch.mask.to(device),
            q_data_type=content.dtype, kv_data_type=content.storage_dtype,
        )  # fmt: skip


class Latent(Kind):
    """Latent attention, of one query in each row or several, causal to the bottom right."""

    about = "BatchMLAPagedAttentionWrapper"
    module, wrapper = "flashinfer.mla", "BatchMLAPagedAttentionWrapper"
    attention = "mla"
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
    "prefill": Prefill(),
    "mla": Latent(),
}
