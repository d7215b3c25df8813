"""The runner's own KV cache, of the case's size, and the views of it that the harness writes."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.errors import TargetFailed
from fuzzgraph.targets.offline.storage_offsets import OffsetsFromAllocation
from fuzzgraph.targets.vllm.release import engine_module, has_module

_PLANNING = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")

_UTILS = "vllm.v1.attention.backends.utils"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.utils"


def open_kv_cache(runner: Any, vllm_config: Any, blocks: int) -> None:
    """Have the runner allocate its cache and open its attention backend, as a server does.

    The memory that a server finds free is that of so many blocks.
    """
    module = engine_module(next(name for name in _PLANNING if has_module(name)))
    specs = runner.get_kv_cache_spec()
    _resolve_layout(vllm_config, specs)
    groups = module.get_kv_cache_groups(vllm_config, specs)
    # A block is one group's at a time, and has a page for each of its layers.
    page = max(group.kv_cache_spec.page_size_bytes * len(group.layer_names) for group in groups)
    memory = page * blocks
    planned = module.get_kv_cache_config_from_groups(vllm_config, groups, available_memory=memory)
    with OffsetsFromAllocation():  # its states are views of one buffer
        runner.initialize_kv_cache(planned)


def _resolve_layout(vllm_config: Any, specs: Any) -> None:
    """As the engine core does it with what its one worker says; older releases have one layout."""
    utils = engine_module(_UTILS)
    if not hasattr(utils, "resolve_kv_cache_layout"):
        return
    backends = engine_module(_CONNECTOR).get_current_attn_backends(vllm_config)
    supported = [layout.name for layout in utils.get_supported_kv_cache_layouts(backends)]
    utils.resolve_kv_cache_layout(vllm_config, [supported], [*specs.values()])


def kv_planes(cache: torch.Tensor, config: EngineConfig) -> tuple[torch.Tensor, ...]:
    """[pages, page_size, heads, head_dim] views of keys and of values, or by slot.

    Raises:
        TargetFailed: the cache has another shape than the releases that are known.
    """
    heads, columns = config.num_kv_heads, config.head_dim
    page = config.page_size
    if config.kv_dtype != "auto":
        cache = cache.view(content_for(config).storage_dtype)  # FP8 lies there as bytes
    if config.attention == "mla":
        return (_latent_rows(cache, page, columns),)
    if cache.shape[1:] == (heads, page, 2 * columns):  # triton_attn.py: keys and values joined
        by_slot = cache.transpose(1, 2)
        return by_slot[..., :columns], by_slot[..., columns:]
    if cache.shape[1:] == (2, page, heads, columns):
        return cache[:, 0], cache[:, 1]
    if cache.shape[:1] == (2,) and cache.shape[2:] == (page, heads, columns):
        return cache[0], cache[1]
    raise _unknown(cache)


def _latent_rows(cache: torch.Tensor, page: int, columns: int) -> torch.Tensor:
    """[pages, page_size, 1, head_dim]; releases have the head behind the page or none at all."""
    if cache.shape[1:] == (1, page, columns):
        return cache.transpose(1, 2)
    if cache.shape[1:] == (page, columns):
        return cache[:, :, None]
    raise _unknown(cache)


def _unknown(cache: torch.Tensor) -> TargetFailed:
    return TargetFailed(
        f"vLLM's KV cache is {list(cache.shape)}, a shape that targets/vllm/kv_cache.py does not"
        " know. Add it there."
    )
