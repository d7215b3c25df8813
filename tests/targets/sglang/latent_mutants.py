"""Backends of latent attention that plan or write wrongly; opened by name."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends import fa3, flashmla, trtllm_mla
from fuzzgraph.targets.sglang.backends.attention_backend import BackendTarget
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["stages_added_up", "tiles_of_the_capture", "unwritten_rope", "unwritten_rope_fa3"]


def tiles_of_the_capture() -> BackendTarget:
    """FlashMLA's tiles are planned for one key in each row, whatever the batch holds."""
    target = flashmla.target("sglang-flashmla", "decode")
    open_session = target.open

    def open_planning_once(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        module = engine_module("sglang.srt.layers.attention.flashmla_backend")
        plan, prepare = module.get_mla_metadata, session.runner.prepare

        def of_the_capture(lens: torch.Tensor, *given: Any, **named: Any) -> Any:
            return plan(torch.ones_like(lens), *given, **named)

        def prepare_with_a_stale_plan(batch: Any) -> Any:
            module.get_mla_metadata = of_the_capture
            try:
                return prepare(batch)
            finally:
                module.get_mla_metadata = plan

        session.runner.prepare = prepare_with_a_stale_plan
        return session

    target.open = open_planning_once  # type: ignore[method-assign]
    return target


def stages_added_up() -> BackendTarget:
    """Values are looked up by the number of their layer and that of the first one."""
    target = trtllm_mla.target("sglang-trtllm-mla", "decode")
    open_session = target.open

    def open_mixed_up(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        pool = session._model_runner.token_to_kv_pool
        pool.get_key_buffer = lambda layer: pool.kv_buffer[layer + pool.start_layer]
        return session

    target.open = open_mixed_up  # type: ignore[method-assign]
    return target


def unwritten_rope() -> BackendTarget:
    """The rotary part of new keys is written as zeros."""
    return _without_rope(trtllm_mla.target("sglang-trtllm-mla", "decode"))


def unwritten_rope_fa3() -> BackendTarget:
    """The same on FlashAttention 3."""
    return _without_rope(fa3.mla_target("sglang-fa3-mla", "decode"))


def _without_rope(target: BackendTarget) -> BackendTarget:
    open_session = target.open

    def open_forgetful(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        pool = session._model_runner.token_to_kv_pool
        write = pool.set_mla_kv_buffer

        def without_rope(layer: Any, where: Any, nope: Any, rope: Any, *given: Any) -> None:
            write(layer, where, nope, torch.zeros_like(rope), *given)

        pool.set_mla_kv_buffer = without_rope
        return session

    target.open = open_forgetful  # type: ignore[method-assign]
    return target
