"""`--attention-backend qsa`: Qwen's sparse attention, which selects groups of keys.

Real: `QwenSparseAttnBackend` with its preparation as on CUDA, its Triton kernels (metadata of a
replay, expansion of groups, counts, gathering of what was selected), its pool and the engine's
indexer with its ring of keys. Modelled is what is compiled: the preparation of the indexer's
queries and keys, its scores, the selection of groups, and FlashAttention, as on a Hopper. Left out
are the recurrent layers beside it, which `gdn` drives, TensorRT-LLM's kernels of Blackwells, and an
index in FP8.
"""

from __future__ import annotations

import functools
from typing import Any

from fuzzgraph.block_index import GROUP
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.kernel_models import (
    block_indexer,
    flash_attention,
    prompt_scores,
    sparse_indexer,
)
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS
from fuzzgraph.targets.offline.cuda_on_cpu import tensors_claim_cuda
from fuzzgraph.targets.offline.kernel_arguments import strict
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    BackendTarget,
)
from fuzzgraph.targets.sglang.backends.left_keys import LeftKeysSession
from fuzzgraph.targets.sglang.block_selecting_model import BlockSelectingModel
from fuzzgraph.targets.sglang.excuses.decode import QSA_EXCUSES
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.selecting_draft_model import BlockSelectingDraftModel
from fuzzgraph.targets.sglang.stubs.block_index_pool import POOL, SELECTED_GROUPS, describe_indexer
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models

_MODULE = f"{ATTENTION}.qwen_sparse_attn_backend"
_METADATA = f"{ATTENTION}.qsa.graph_metadata"
_CONFIG, _SCORES = f"{ATTENTION}.qsa.config", f"{ATTENTION}.qsa.mqa"
_TOPKS = (0, 1, 3, 16, 64)
_PREPARED = "sglang.kernels.ops.attention.qsa_indexer"
_SELECTIONS = (
    "sglang.kernels.ops.attention.fast_topk",
    "sglang.kernels.ops.elementwise.fast_topk",
)
"""Where releases compile the selection of 512 groups, the newest first."""


def _prepared(model: Any) -> Any:
    def made(compiled: Compiled) -> Any:
        # From 0.5.23 on keys may have another dtype than what they are made of.
        kept = compiled.template.get("TOut", compiled.template["T"])
        unfollowed = {"TOut": None if kept == compiled.template["T"] else kept}
        halves = {"kIsNeox": compiled.number("kIsNeox")}
        Call(model.__name__, _SCORES).leaves_out(unfollowed | halves, {"kIsNeox": 1})
        width, dtype = compiled.number("kHeadDim"), compiled.dtype("T")
        return functools.partial(model, width=width, dtype=dtype)

    return made


def _selection(compiled: Compiled) -> Any:
    return functools.partial(block_indexer.select_groups, topk=compiled.number("kTopK"))


_COMPILED: Makers = {
    "qsa_index_q_prep": _prepared(block_indexer.prepare_group_queries),
    "qsa_index_k_compress": _prepared(block_indexer.compress_group_keys),
    "FastTopKKernel::run": _selection,
}


def _scores(*, min_scored_len: int = 0, **built_for: Any) -> Any:
    """In place of the engine's kernel in TileLang."""
    return functools.partial(block_indexer.group_scores, min_scored_len=min_scored_len)


def _packed_scores(
    heads: int,
    head_dim: int,
    block_n: int = 64,
    block_q: int = 32,
    num_stages: int = 3,
    threads: int = 512,
    dtype: str = "bfloat16",
) -> Any:
    """The same of prompts."""
    _built_in_bfloat16("_tilelang_qsa_mqa_prefill_kernel", dtype)
    return _of_tiles(prompt_scores.packed_scores, heads, head_dim, block_n, block_q)


def _relative_scores(
    heads: int,
    head_dim: int,
    block_n: int = 64,
    block_q: int = 32,
    num_stages: int = 3,
    threads: int = 512,
    key_splits: int = 1,
    dtype: str = "bfloat16",
) -> Any:
    """The same of prompts from 0.5.23 on; into how many parts keys are split changes no score."""
    _built_in_bfloat16("_tilelang_qsa_mqa_prefill_relative_kernel", dtype)
    return _of_tiles(prompt_scores.relative_scores, heads, head_dim, block_n, block_q)


def _mask_scores(threads: int = 512, block_k: int = 4096) -> Any:
    return strict(prompt_scores.mask_scores)


def _of_tiles(model: Any, heads: int, head_dim: int, block_n: int, block_q: int) -> Any:
    """The model, built for these sizes."""
    return functools.partial(
        strict(model), heads=heads, head_dim=head_dim, block_n=block_n, block_q=block_q
    )


def _built_in_bfloat16(kernel: str, dtype: str) -> None:
    Call(kernel, _SCORES).leaves_out({"dtype": dtype}, {"dtype": "bfloat16"})


_PROMPT_KERNELS = {
    "_tilelang_qsa_mqa_prefill_kernel": _packed_scores,
    "_tilelang_qsa_mqa_prefill_relative_kernel": _relative_scores,
    "_tilelang_qsa_mqa_mask_kernel": _mask_scores,
}


def _flash_attention() -> Any:
    """In place of importing it from a package."""
    return strict(flash_attention.flash_attn_varlen_func)


def _supports_kernels(pool: Any, device: Any) -> bool:
    """As on a device with CUDA, which a CPU is not called in this place."""
    return isinstance(pool, engine_module(POOL).QSATokenToKVPool)


def _refuses(config: EngineConfig) -> str | None:
    if config.index_group != GROUP:
        return f"index_group={config.index_group}: the indexer's weights are those of {GROUP}"
    if config.index_topk not in _TOPKS:
        return f"index_topk={config.index_topk}: a selection is made for one of {_TOPKS} groups"
    if config.v_head_dim != config.head_dim:
        return f"v_head_dim={config.v_head_dim}: values must be as wide as keys"
    return None


def _describe(runner: Any) -> None:
    """A model with an indexer, on a server with CUDA."""
    describe_indexer(runner.model_config.hf_config, runner.configuration.config)
    if runner.device != "cpu":
        return
    # The kernel that selects is built for 512 and 2048 groups; nothing else asks for these.
    config: Any = engine_module(_CONFIG)
    config._COMPRESSED_BLOCK_TOPK = frozenset((*_TOPKS, SELECTED_GROUPS, 2048))
    scores: Any = engine_module(_SCORES)
    scores.HAS_TILELANG, scores._tilelang_qsa_mqa_decode_kernel = True, _scores
    scores._num_sms = lambda device: 4
    vars(scores).update(_PROMPT_KERNELS)
    for name in filter(has_module, (_PREPARED, *_SELECTIONS)):
        compile_to_models(engine_module(name), _COMPILED)
    module: Any = engine_module(_MODULE)
    backend = module.QwenSparseAttnBackend
    backend._forward_paged_attention = tensors_claim_cuda(backend._forward_paged_attention)
    backend._can_replay_with_gpu_kernels = tensors_claim_cuda(backend._can_replay_with_gpu_kernels)
    drafts = module.QwenSparseMultiStepDraftBackend
    drafts.init_forward_metadata_out_graph = tensors_claim_cuda(
        drafts.init_forward_metadata_out_graph
    )


QSA = AttentionBackend(
    name="qsa",
    places=((_MODULE, "QwenSparseAttnBackend"),),
    attentions=("mha",),
    page_sizes=(64,),  # sglang model_overrides/qwen4_exp.py
    fields=(),
    read=lambda metadata: {},
    # A case without a number has 512 groups selected, which is all that there are.
    max_context_len=SELECTED_GROUPS * 4 - 16,
    stood_in_for=(
        "the preparation of the indexer's queries and keys, its scores, both selections of groups,"
        " and FlashAttention, by models",
        "the table of rotations",
    ),
    adapt=_describe,
    refuses=_refuses,
    kernels=(
        (_MODULE, "_resolve_flash_attn_varlen_func", _flash_attention),
        (_METADATA, "supports_graph_metadata_kernels", _supports_kernels),
        (
            "sgl_kernel",
            "top_k",
            Stub(
                fast_topk_v2=sparse_indexer.fast_topk_v2,
                _FAST_TOPK_SUPPORTED_K=(*_TOPKS[1:], 2048),
            ),
        ),
    ),
    model=BlockSelectingModel,
    draft_model=BlockSelectingDraftModel,
    more=(
        # KV in bfloat16 has groups expanded behind the indexer, from 0.5.22 on where 512 are kept.
        ("dtypes", ("float32", "bfloat16")),
        ("index_topks", _TOPKS),
        ("index_groups", (GROUP,)),
        ("head_dims", ((8, 8), (16, 16))),
    ),
)


class QsaSession(LeftKeysSession):
    """One backend and one decode runner, whose steps leave keys of groups."""

    also_promised = (GROUP_KEYS, GROUP_STRAYS)


class QsaTarget(BackendTarget):
    """The target of the backend in one mode."""

    excuses = QSA_EXCUSES

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> QsaSession:
        return QsaSession(config, graphs, self.backend)


def target(name: str, mode: Mode) -> QsaTarget:
    """The target in one mode."""
    return QsaTarget(name, QSA, mode)
