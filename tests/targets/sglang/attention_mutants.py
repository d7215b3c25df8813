"""Engines that call their attention kernels with one wrong argument; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.kernel_models import flash_attention, trtllm_gen
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends import trtllm_mha
from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend, BackendTarget
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.runners.eagle_draft import DraftTarget
from fuzzgraph.targets.sglang.stubs import draft_worker

__all__ = [
    "bidirectional_verify",
    "drafts_on_the_wrong_step",
    "uncapped",
    "unmasked_decode",
    "unwritten_kv",
    "wrong_scale",
]


def _with_kernel(name: str, model: Callable[..., Any]) -> tuple[tuple[str, str, Any], ...]:
    """FlashAttention's kernels with another model under a name."""
    return tuple(
        (holder, held, model if held == name else old) for holder, held, old in FA3.kernels
    )


def bidirectional_verify() -> BackendTarget:
    """A verify whose tokens see the drafts behind them."""
    return _not_causal().target("sglang-fa3-verify", "target_verify")


def unmasked_decode() -> BackendTarget:
    """A decode that is planned as causal and launched as not."""
    return _not_causal().target("sglang-fa3", "decode")


def uncapped() -> BackendTarget:
    """A decode that leaves out what caps a model's logits."""

    def call(*args: Any, **named: Any) -> Any:
        return flash_attention.flash_attn_with_kvcache(*args, **{**named, "softcap": 0.0})

    kernels = _with_kernel("flash_attn_with_kvcache", call)
    return replace(FA3, kernels=kernels).target("sglang-fa3", "decode")


def _not_causal() -> AttentionBackend:
    def call(*args: Any, **named: Any) -> Any:
        return flash_attention.flash_attn_with_kvcache(*args, **{**named, "causal": False})

    return replace(FA3, kernels=_with_kernel("flash_attn_with_kvcache", call))


def unwritten_kv() -> BackendTarget:
    """A decode of one row that does not write its keys and values."""
    target = trtllm_mha.target("sglang-trtllm-mha", "decode")
    open_session = target.open

    def open_unwritten(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        pool = session._model_runner.token_to_kv_pool
        write = pool.set_kv_buffer

        def written(layer: Any, places: Any, k: Any, *more: Any, **named: Any) -> None:
            if len(k) > 1:
                write(layer, places, k, *more, **named)

        pool.set_kv_buffer = written
        return session

    target.open = open_unwritten  # type: ignore[method-assign]
    return target


def wrong_scale() -> BackendTarget:
    """A decode that forgets to scale logits."""

    def call(**named: Any) -> Any:
        return trtllm_gen.trtllm_batch_decode_with_kv_cache(**{**named, "bmm1_scale": 1.0})

    package = Stub(decode=Stub(trtllm_batch_decode_with_kv_cache=call), prefill=Stub())
    backend = trtllm_mha.target("sglang-trtllm-mha", "decode").backend
    [(holder, name, _)] = backend.kernels
    return replace(backend, kernels=((holder, name, package),)).target(
        "sglang-trtllm-mha", "decode"
    )


def drafts_on_the_wrong_step() -> DraftTarget:
    """EAGLE's drafts, whose steps look at the metadata of one another."""
    target = DraftTarget("sglang-eagle-draft", "draft")
    open_session = target.open_session

    def opened(config: EngineConfig, graphs: Any) -> Any:
        with replaced_names((draft_worker,), {"_engine_draft": swapped}):
            return open_session(config, graphs)

    engines = draft_worker._engine_draft

    def swapped(worker: Any, model: Any, *, eagle: bool) -> Any:
        steps = worker.draft_attn_backend.attn_backends
        worker.draft_attn_backend = Stub(attn_backends=steps[::-1])
        return engines(worker, model, eagle=eagle)

    target.open_session = opened  # type: ignore[method-assign]
    return target
