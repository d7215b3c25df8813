"""`--attention-backend minicpm_flashattn`: MiniCPM's sparse attention, as on a Hopper.

Real: `MiniCPMSparseBackend` and the `FlashAttentionBackend` beneath it, how both prepare a step,
the Triton kernel that pools keys, `MiniCPMCompressedCache`, which gives pooled keys their slots,
and `MHATokenToKVPool`. Modelled is what is compiled: the scores of pooled keys, their pooling by
blocks, the table of selected keys, and attention. Left out are the scores of Blackwells, one kernel
in TileLang (`fuse_kernel.py`), and the recurrent layers beside, which `lightning` drives.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.kernel_models import flash_attention, pooled_selection
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.pooled_keys import POOLED_KEYS, POOLED_STRAYS
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    BackendTarget,
)
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.backends.left_keys import LeftKeysSession
from fuzzgraph.targets.sglang.excuses.decode import MINICPM_EXCUSES
from fuzzgraph.targets.sglang.pooled_blocks_model import PooledBlocksModel
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models
from fuzzgraph.targets.sglang.stubs.pooled_pool import describe_pooling
from fuzzgraph.world import Batch

__all__ = ["MINICPM", "MINICPM_BACKEND", "MinicpmSession", "MinicpmTarget"]

_PACKAGE = f"{ATTENTION}.minicpm"
MINICPM_BACKEND = f"{_PACKAGE}.backend"
_ADAPTER, _UTILS = f"{_PACKAGE}.attention_adapter", f"{_PACKAGE}.sparse_utils"
_TABLES = (
    "sglang.kernels.ops.attention.minicpm_sala.get_block_table",
    "sglang.kernels.ops.minicpm_sala.get_block_table",
)
"""Where releases compile the table of selected keys, the newest first."""
_BLOCKS = (32,)
"""Of shorter ones pooled keys begin every four keys or fewer, as many as rows of `req_to_token` are
longer than a context, and then no graph could be replayed (see `strategies`)."""
_GROUP = 16
"""Query heads of each KV head (minicpm/backend.py asserts it)."""


def _table(compiled: Compiled) -> Any:
    sizes = (
        compiled.number("kSparseTopK"),
        compiled.number("kHeadGroup"),
        compiled.number("kSparseBlockSize"),
    )
    return functools.partial(pooled_selection.selected_slots, sizes=sizes)


_COMPILED: Makers = {"get_block_table": _table}


def _describe(runner: Any) -> None:
    """A model with this attention, and models in the places of what the engine compiles for it."""
    describe_pooling(runner.model_config, runner.configuration.config)
    if runner.device == "cpu":
        compile_to_models(next(engine_module(n) for n in _TABLES if has_module(n)), _COMPILED)


def _refuses(config: EngineConfig) -> str | None:
    if not config.pooled_block:
        return "the model selects blocks by pooled keys: pooled_block must not be 0"
    if config.pooled_block not in _BLOCKS:
        return f"pooled_block={config.pooled_block}: blocks have {_BLOCKS[0]} keys"
    if config.num_q_heads != _GROUP * config.num_kv_heads:
        return f"a KV head must have {_GROUP} query heads"
    if config.v_head_dim != config.head_dim:
        return f"v_head_dim={config.v_head_dim}: values must be as wide as keys"
    return None


MINICPM = replace(
    FA3,
    name="minicpm_flashattn",
    places=((MINICPM_BACKEND, "MiniCPMSparseBackend"),),
    made_with=(("use_flashinfer", False),),
    page_sizes=(1,),  # minicpm/cache.py, MiniCPMCompressedCache.reset_allocator
    fields=("cache_seqlens", "page_table", "cu_seqlens_q", "cu_seqlens_k"),
    held=lambda backend, size: backend.forward_metadata.base,
    max_context_len=256,
    max_topk=1,
    windows=False,
    unified=False,
    caps=False,
    stood_in_for=(
        "scores of pooled keys, their pooling by blocks, the table of selected keys and attention,"
        " by models",
        "the allocator of slots",
    ),
    refuses=_refuses,
    adapt=_describe,
    kernels=(
        *FA3.kernels,
        (_ADAPTER, "flash_attn_with_kvcache", flash_attention.flash_attn_with_kvcache),
        (_UTILS, "infllmv2_attn_stage1", pooled_selection.infllmv2_attn_stage1),
        (_UTILS, "max_pooling_1d_varlen", pooled_selection.max_pooling_1d_varlen),
    ),
    model=PooledBlocksModel,
    beside=(),
    more=(
        ("dtypes", ("bfloat16", "float16")),
        ("head_dims", ((32, 32),)),
        ("query_heads_each", _GROUP),
        ("max_q_heads", 2),
        ("index_topks", (4, 3, 5, 6)),
        ("pooled_blocks", _BLOCKS),
        # arg_groups/model_overrides/minicpm.py: no data-parallel attention, no radix cache.
        ("max_dp_size", 1),
        ("shared_prefixes", False),
    ),
    on_device=(),
)


class MinicpmSession(LeftKeysSession):
    """The backend and one decode runner with its captured graphs."""

    also_promised = (POOLED_KEYS, POOLED_STRAYS)

    @property
    def rows_read_whole(self) -> tuple[torch.Tensor, ...]:
        """Pooled keys of a batch: a graph gets as much of these buffers as rows of `dense_len` keys
        need, and replays for longer ones. Kernels find rows by offsets (minicpm/backend.py,
        _compress_decode_keys; `level_len` of _bind_sparse_graph_metadata)."""
        buffers = self._own_backend.decode_cuda_graph_metadata
        return tuple(buffers[f"compress_{level}"] for level in ("k1", "k2"))

    def _write_past(self, batch: Batch) -> None:
        with self.engine_runs(batch):
            self._model.schedule(self._model_runner.req_to_token_pool, batch)
        self._past = None  # which slots a step has depends on the steps that were run before it
        super()._write_past(batch)

    @property
    def _model(self) -> PooledBlocksModel:
        assert isinstance(self._attention, PooledBlocksModel)
        return self._attention


class MinicpmTarget(BackendTarget):
    """Decodes on the sglang release that this process holds."""

    excuses = MINICPM_EXCUSES

    def __init__(self, name: str, mode: Mode, backend: AttentionBackend = MINICPM) -> None:
        super().__init__(name, backend, mode)
        self.capabilities = self.capabilities.replace(later_stages=False, two_batch_overlap=False)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> MinicpmSession:
        return MinicpmSession(config, graphs, self.backend)
