"""vLLM's own configuration of a case: what a server would be started with."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fuzzgraph.case import EngineConfig, group_configs
from fuzzgraph.content import hidden_width
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.world import VOCAB

ARCHITECTURE = "FuzzGraphOneLayer"
"""Name under which the model is registered, as a plug-in registers one."""
DRAFT_ARCHITECTURE = "EagleFuzzGraphDraft"

NOT_COMPILED, COMPILED = 0, 3
"""`CompilationMode`: NONE and VLLM_COMPILE."""
_GRAPHS = {
    "decode": "FULL_DECODE_ONLY",
    "target_verify": "FULL_DECODE_ONLY",
    "prefill": "FULL",
    "draft": "PIECEWISE",
}
"""`cudagraph_mode` by what is captured."""


@dataclass(frozen=True)
class Drafting:
    """How a server drafts by a model, in mode draft."""

    architecture: str = DRAFT_ARCHITECTURE
    """Of the draft model."""
    verified: bool = False
    """Whether a step verifies the drafts of the step before it, which are then captured as well.
    An id of the target model names a token and the one behind it then."""

    @property
    def vocab(self) -> int:
        """Token ids of the target model."""
        return VOCAB * VOCAB if self.verified else VOCAB


NO_DRAFTS = Drafting()


def vllm_config(
    config: EngineConfig,
    attention: Mapping[str, Any],
    async_scheduling: bool = False,
    architecture: str = ARCHITECTURE,
    cudagraph_mode: str | None = None,
    compilation_mode: int = NOT_COMPILED,
    additional: Mapping[str, str] = MappingProxyType({}),
    alone: bool = False,
    drafting: Drafting = NO_DRAFTS,
) -> Any:
    """Graphs of the case's sizes on one rank.

    A model may be one token longer than the case's longest request: its sampler writes that token.

    Args:
        attention: of `--attention-config`.
        cudagraph_mode: of `--compilation-config`; full graphs of the case's mode by default.
        compilation_mode: of `--compilation-config`.
        additional: of `--additional-config`.
        alone: whether this is the one process of the server, as its groups are joined; for a model
            with experts, whatever the case's has, so that they are there where a case needs them.
        drafting: in mode draft.
    """
    module = engine_module("vllm.config")
    mode = config.modes[0]
    longest, requests = max_model_len(config), config.req_pool_size
    captured = _captured_tokens(config, drafting)
    experts = alone or config.dp_size > 1
    model_config = _model_config(config, architecture, drafting.vocab, experts=experts)
    parallel_config = _parallel_config(1 if alone else config.dp_size, config.dp_rank)
    cache = call_with_known(
        module.CacheConfig,
        block_size=config.page_size,
        cache_dtype="auto" if config.kv_dtype == "auto" else "fp8_e4m3",
        gpu_memory_utilization=0.5,
        enable_prefix_caching=False,
    )
    compilation = call_with_known(
        module.CompilationConfig,
        mode=compilation_mode,
        cudagraph_mode=cudagraph_mode or _GRAPHS[mode],
        cudagraph_capture_sizes=captured,
        cudagraph_num_of_warmups=1,
        custom_ops=["none"],  # layers in torch, which has no compiled operator to call
        ir_enable_torch_wrap=False,
    )
    return module.VllmConfig(
        model_config=model_config,
        cache_config=cache,
        scheduler_config=module.SchedulerConfig(
            max_num_batched_tokens=max(
                longest, requests * most_tokens(config, drafting), *captured
            ),
            max_num_seqs=requests,
            max_model_len=longest,
            is_encoder_decoder=False,
            async_scheduling=async_scheduling,
        ),
        parallel_config=parallel_config,
        load_config=module.LoadConfig(load_format="dummy", use_tqdm_on_load=False),
        compilation_config=compilation,
        attention_config=module.AttentionConfig(**attention),
        additional_config=dict(additional),
        speculative_config=_speculative_config(config, model_config, parallel_config, drafting),
    )


def _parallel_config(ranks: int, rank: int) -> Any:
    """Of one of the server's data-parallel ranks, each with a GPU, which are not counted here."""
    kind = engine_module("vllm.config").ParallelConfig
    if ranks == 1:
        return kind()
    return kind(
        data_parallel_size=ranks,
        data_parallel_rank=rank,
        distributed_executor_backend="mp",
    )


def most_tokens(config: EngineConfig, drafting: Drafting = NO_DRAFTS) -> int:
    """Tokens that a step computes of one request at most."""
    if drafting.verified:
        return config.spec_steps + 1
    widths = {"target_verify": config.draft_tokens, "prefill": config.max_context_len}
    return widths.get(config.modes[0], 1)


def _captured_tokens(config: EngineConfig, drafting: Drafting = NO_DRAFTS) -> list[int]:
    """The engine's captured sizes, which are counts of tokens."""
    if drafting.verified:  # a draft computes several tokens of each row first, and then one each
        widths = 1, most_tokens(config, drafting)
        return sorted({rows * width for rows in config.capture_bs for width in widths})
    if config.modes[0] == "prefill":
        return list(config.capture_tokens)
    return [rows * most_tokens(config) for rows in config.capture_bs]


def _speculative_config(
    config: EngineConfig, model_config: Any, parallel_config: Any, drafting: Drafting
) -> Any:
    """Drafts by n-grams, which need no model; the case says which drafts are verified. In mode
    draft those of EAGLE, whose model grows them."""
    if config.modes[0] == "draft":
        return engine_module("vllm.config").SpeculativeConfig(
            method="eagle",
            model=_model_folder(config, drafting.architecture, drafting.vocab),
            num_speculative_tokens=config.spec_steps,
            target_model_config=model_config,
            target_parallel_config=parallel_config,
        )
    if config.modes[0] != "target_verify" or config.draft_tokens == 1:
        return None
    return engine_module("vllm.config").SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=config.draft_tokens - 1,
        prompt_lookup_min=2,
        prompt_lookup_max=3,
        target_model_config=model_config,
        target_parallel_config=parallel_config,
    )


def _model_config(config: EngineConfig, architecture: str, vocab: int, *, experts: bool) -> Any:
    model = _model_folder(config, architecture, vocab, experts=experts)
    return engine_module("vllm.config").ModelConfig(
        model=model,
        tokenizer=model,
        skip_tokenizer_init=True,
        dtype=config.dtype,
        max_model_len=max_model_len(config),
        seed=0,
    )


_MAMBA_CHUNK = 16
"""Tokens of a prompt that Mamba2's kernels compute at once."""


def max_model_len(config: EngineConfig) -> int:
    """Tokens of the longest request that the server takes.

    No fewer than a graph has: the dummy rows of a capture have as many (`_dummy_run`). Drafts stand
    behind it, and what is sampled behind them.
    """
    drafted = config.spec_steps + 1 if config.modes[0] == "draft" else 0
    return max(config.max_context_len + 1 + drafted, *_captured_tokens(config))


def _model_folder(
    config: EngineConfig, architecture: str, vocab: int, *, experts: bool = False
) -> str:
    described = {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": _hidden_size(config),
        "intermediate_size": 64,
        "num_hidden_layers": len(group_configs(config)),
        "num_attention_heads": config.num_q_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": 1 << 17,
        "torch_dtype": config.dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if config.attention == "mla":
        described |= _latent(config)
    if config.recurrent_state:
        # Of 2048 otherwise, of which one chunk's blocks take seconds; prompts have several now.
        described["mamba_chunk_size"] = _MAMBA_CHUNK
    if experts:  # the engine lets other ranks be for such models alone
        described["num_experts"] = config.dp_size
    return _written(json.dumps(described))


def _hidden_size(config: EngineConfig) -> int:
    if config.modes[0] == "draft":
        return drafted_width(config)
    return config.num_q_heads * config.head_dim


def drafted_width(config: EngineConfig) -> int:
    """Columns of what the two models of a draft hand on: hidden states, and the number of the
    forward; as many as heads can share."""
    heads = config.num_q_heads
    return -(-(hidden_width(config) + 1) // heads) * heads


def _latent(config: EngineConfig) -> dict[str, Any]:
    """What DeepSeek's models say of themselves; the engine takes latent attention for them."""
    rank = config.v_head_dim
    return {
        "model_type": "deepseek_v3",
        "num_key_value_heads": config.num_q_heads,  # of the form that prefills attend in
        "q_lora_rank": None,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": rank,
        "qk_rope_head_dim": config.head_dim - rank,
        "v_head_dim": rank,
    }


@functools.cache
def _written(text: str) -> str:
    """A folder with this model description, for the life of the process."""
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    (folder / "config.json").write_text(text, encoding="utf-8")
    return str(folder)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzzgraph-vllm-")
