"""The engine's own pools as sessions hand them over whose outputs are judged: keys and values of
all layers that attend, what encoders left, states and their rings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, attention_layers, group_configs
from fuzzgraph.ports import GroupPools, Pools
from fuzzgraph.targets.sglang.attention_model import PrefillModel
from fuzzgraph.targets.sglang.cross_attention_model import CROSS_LAYER, CrossAttentionModel
from fuzzgraph.targets.sglang.hybrid_model import HybridModel
from fuzzgraph.targets.sglang.stubs.fp4_kv import fp4_planes
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.pooled_pool import world_part
from fuzzgraph.targets.sglang.stubs.sparse_pool import SPARSE_LAYER


def judged_pools(runner: ModelRunner, config: EngineConfig) -> Pools:
    """The engine's own pools, with keys and values, for sessions whose outputs are judged."""
    kv = runner.token_to_kv_pool
    windowed = runner.is_hybrid_swa
    further = attention_layers(config)[len(group_configs(config)) :]
    return Pools(
        req_to_token=runner.req_to_token_pool.req_to_token,
        kv_planes=_attention_planes(kv, config),
        more_groups=(GroupPools(kv_planes=_planes(kv.swa_kv_pool)),) if windowed else (),
        more_layers=tuple(
            _planes(kv.swa_kv_pool if layer.group else kv.full_kv_pool, layer.number)
            for layer in further
        ),
        **_encoder_pools(runner),
        **judged_states(runner),
    )


def judged_states(runner: ModelRunner) -> dict[str, Any]:
    """Fields of `Pools` with recurrent states, where the model has such layers."""
    model = runner.model
    if isinstance(model, PrefillModel):
        model = model.model.attention
    if not isinstance(model, HybridModel):
        return {}
    # A slot is cleared when it is given out (MambaPool.alloc up to 0.5.10; clear_slots since).
    pool = runner.req_to_token_pool.mamba_pool
    states = model.kept_states(pool.mamba_cache)
    further = tuple(
        {**_tensors(each.kept_states(pool.mamba_cache)), **_ring_entries(pool, each.number)}
        for each in model.further
    )
    rings = _judged_rings(pool)
    return {**states, **rings, "more_states": further, "states_committed": True}


def _tensors(fields: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: each for name, each in fields.items() if isinstance(each, torch.Tensor)}


_COUNTS = {
    "ring_cursors": ("replayssm_spec_write_pos", "replayssm_write_pos"),
    "ring_starts": ("replayssm_cache_base",),
    "ring_flags": ("replayssm_is_flush",),
}
"""Field of `Pools` -> its names in the engine's pool of states, by release and mode."""
_ENTRIES = {
    "ring_deltas": "replayssm_d",
    "ring_keys": "replayssm_k",
    "ring_gates": "replayssm_g",
    "ring_delta_rests": "replayssm_rawv",
    "ring_key_rests": "replayssm_rawk",
}


def _judged_rings(pool: Any) -> dict[str, Any]:
    """Fields of `Pools` for rings beside states that last from step to step.

    Those of KDA's verifies, and up to 0.5.19 of those of gated delta nets, do not: what stays is in
    the state when a step ends (sglang memory_pool.py, `replayssm_spec_fold`).
    """
    counts = _ring_counts(pool)
    if "ring_cursors" not in counts:
        return {}
    by_row = getattr(pool, "replayssm_spec_write_pos", None) is not None
    return {**counts, **_ring_entries(pool, 0), "rings_by_row": by_row}


def _ring_counts(pool: Any) -> dict[str, torch.Tensor]:
    """How full rings are, of all layers."""
    return {
        field: tensor
        for field, names in _COUNTS.items()
        for name in names
        if (tensor := getattr(pool, name, None)) is not None
    }


def _ring_entries(pool: Any, layer: int) -> dict[str, torch.Tensor]:
    """What lies in the rings of a recurrent layer that last from step to step."""
    if "ring_cursors" not in _ring_counts(pool):
        return {}
    return {
        field: tensor[layer]
        for field, name in _ENTRIES.items()
        if (tensor := getattr(pool.mamba_cache, name, None)) is not None
    }


def _encoder_pools(runner: ModelRunner) -> dict[str, Any]:
    """Fields of `Pools` with what encoders left, where a layer attends to it."""
    if not isinstance(runner.model, CrossAttentionModel):
        return {}
    # Slots of both are taken at once, with a prompt (sglang prepare_encoder_info_extend).
    planes = _planes(runner.token_to_kv_pool, CROSS_LAYER)
    return {"encoder_in_front": True, "encoder_planes": planes}


def _attention_planes(kv: Any, config: EngineConfig) -> tuple[torch.Tensor, ...]:
    """Of the layer whose output is `attention`."""
    if config.pooled_block:
        return tuple(world_part(config, plane) for plane in _planes(kv))
    if hasattr(kv, "index_k_pool"):
        return _planes(kv.main_pool, SPARSE_LAYER)
    return _planes(getattr(kv, "full_kv_pool", kv))


def _planes(kv: Any, layer: int = 0) -> tuple[torch.Tensor, ...]:
    if getattr(kv, "is_quantized_kv_cache", False):
        return fp4_planes(kv, layer)
    latent = hasattr(kv, "kv_lora_rank")  # one row serves as key and value
    planes = (kv.kv_buffer[layer],) if latent else (kv.k_buffer[layer], kv.v_buffer[layer])
    return tuple(plane.view(kv.dtype) for plane in planes)  # FP8 lies there as bytes
