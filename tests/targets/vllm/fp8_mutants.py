"""Planted bugs of vLLM with KV in FP8, each of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import FlashAttentionTarget


class _ScalesSwapped(RunnerSession):
    """Attention takes the scale of keys for that of values, and the other way round."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layer = self.model.attn
        forward = layer.impl.forward

        def swapped(*given: Any, **named: Any) -> Any:
            layer._k_scale, layer._v_scale = layer._v_scale, layer._k_scale
            try:
                return forward(*given, **named)
            finally:
                layer._k_scale, layer._v_scale = layer._v_scale, layer._k_scale

        layer.impl.forward = swapped


class _StoredWithoutScales(RunnerSession):
    """Keys and values are stored as they are, and multiplied with their scales all the same."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layer = self.model.attn
        store = layer.impl.do_kv_cache_update

        def unscaled(*given: Any, **named: Any) -> Any:
            scales = layer._k_scale.clone(), layer._v_scale.clone()
            layer._k_scale.fill_(1.0)
            layer._v_scale.fill_(1.0)
            try:
                return store(*given, **named)
            finally:
                layer._k_scale.copy_(scales[0])
                layer._v_scale.copy_(scales[1])

        layer.impl.do_kv_cache_update = unscaled


class _QueriesScaled(RunnerSession):
    """Queries are divided by a scale, and attention is told a scale of 1."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layer = self.model.attn
        forward = layer.impl.forward
        layer._q_scale.fill_(0.5)

        def told_none(*given: Any, **named: Any) -> Any:
            layer._q_scale.fill_(1.0)
            try:
                return forward(*given, **named)
            finally:
                layer._q_scale.fill_(0.5)

        layer.impl.forward = told_none


def _planted(session: type[RunnerSession]) -> FlashAttentionTarget:
    target = FlashAttentionTarget("vllm-fa")
    target.session = session
    return target


def scales_swapped() -> FlashAttentionTarget:
    return _planted(_ScalesSwapped)


def stored_without_scales() -> FlashAttentionTarget:
    return _planted(_StoredWithoutScales)


def queries_scaled() -> FlashAttentionTarget:
    return _planted(_QueriesScaled)
