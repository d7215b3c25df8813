"""Parts of what a prompt has cached, where latent rows are expanded and attention is merged.

Sources: sglang prefill_cuda_graph_runner.py `_resolve_prefix_chunk_shape`,
forward_batch_deepseek_mha_mixin.py `prepare_chunked_prefix_cache_info`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzzgraph.case.engine_config import EngineConfig

__all__ = ["MOST_PARTS", "expands_past", "graph_chunk", "merged_parts"]

MOST_PARTS = 16
"""In a graph (sglang prefill_cuda_graph_runner.py `_CHUNKED_PREFIX_VARIANTS`, the last one)."""
_WHERE: Mapping[str, Any] = {
    "modes": ("prefill",),
    "prefill_runner": "full",
    "attention": "mla",
}


def expands_past(config: EngineConfig | Mapping[str, Any]) -> bool:
    """Whether prompts expand what they have cached: those of latent attention in full graphs.

    Args:
        config: a config, or the fields of one that is put together.
    """
    if isinstance(config, Mapping):
        return all(config[name] == value for name, value in _WHERE.items())
    return all(getattr(config, name) == value for name, value in _WHERE.items())


def graph_chunk(config: EngineConfig) -> int:
    """Tokens of a request in a part of a graph: the largest count, dealt out among the slots."""
    return max(1, config.capture_tokens[-1] // config.prefill_slots)


def merged_parts(config: EngineConfig) -> int:
    """Parts of a past, at most, that are merged into the attention of a prompt; 0 where one kernel
    attends to all keys."""
    if not expands_past(config):
        return 0
    without_graph = config.max_kv_chunk_capacity // config.req_pool_size
    parts = -(-config.max_context_len // min(graph_chunk(config), without_graph))
    return min(parts, MOST_PARTS)
