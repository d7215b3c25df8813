"""Planted bugs of vLLM with KV in FP8, each of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import (
    FlashAttentionTarget,
    FlashInferTarget,
    TrtllmGenTarget,
    VllmTarget,
)


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


class _NumbersSwapped(RunnerSession):
    """The same of the scales that FlashInfer gets, which are numbers of the host."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layer = self.model.attn
        layer._k_scale_float, layer._v_scale_float = layer._v_scale_float, layer._k_scale_float


class _ValuesAsStored(RunnerSession):
    """TensorRT-LLM's kernel gets no scale of values."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.model.attn.impl.bmm2_scale = 1.0


class _KeysAsStored(RunnerSession):
    """TensorRT-LLM's kernel gets no scale of keys."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        impl = self.model.attn.impl
        impl.bmm1_scale = impl.scale


class _QueriesByKeys(RunnerSession):
    """Queries are divided by the scale of keys."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layer = self.model.attn
        quantise = layer.impl.maybe_quant_query
        layer.impl.maybe_quant_query = lambda query, dtype, _: quantise(
            query, dtype, layer._k_scale
        )


class _KeysStoredByValues(RunnerSession):
    """The kernel that stores gets the scale of values twice."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.model.attn._k_scale.copy_(self.model.attn._v_scale)


class _LengthsOfFullPages(RunnerSession):
    """A decode is planned as if its last pages were full."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        last = self.builder.paged_kv_last_page_len
        listed, size = self.builder._compute_flashinfer_kv_metadata, self.builder.page_size

        def full(*given: Any, **named: Any) -> Any:
            made = listed(*given, **named)
            last.cpu.fill_(size)
            return made

        self.builder._compute_flashinfer_kv_metadata = full


def _planted(
    session: type[RunnerSession], kind: type[VllmTarget] = FlashAttentionTarget
) -> VllmTarget:
    target = kind(_NAMES[kind])
    target.session = session
    return target


_NAMES: dict[type[VllmTarget], str] = {
    FlashAttentionTarget: "vllm-fa",
    FlashInferTarget: "vllm-flashinfer",
    TrtllmGenTarget: "vllm-flashinfer-trtllm",
}


def scales_swapped() -> VllmTarget:
    return _planted(_ScalesSwapped)


def stored_without_scales() -> VllmTarget:
    return _planted(_StoredWithoutScales)


def queries_scaled() -> VllmTarget:
    return _planted(_QueriesScaled)


def numbers_swapped() -> VllmTarget:
    return _planted(_NumbersSwapped, FlashInferTarget)


def queries_by_keys() -> VllmTarget:
    return _planted(_QueriesByKeys, FlashInferTarget)


def keys_stored_by_values() -> VllmTarget:
    return _planted(_KeysStoredByValues, FlashInferTarget)


def lengths_of_full_pages() -> VllmTarget:
    return _planted(_LengthsOfFullPages, FlashInferTarget)


def trtllm_numbers_swapped() -> VllmTarget:
    return _planted(_NumbersSwapped, TrtllmGenTarget)


def trtllm_values_as_stored() -> VllmTarget:
    return _planted(_ValuesAsStored, TrtllmGenTarget)


def trtllm_keys_as_stored() -> VllmTarget:
    return _planted(_KeysAsStored, TrtllmGenTarget)


def trtllm_stored_without_scales() -> VllmTarget:
    return _planted(_StoredWithoutScales, TrtllmGenTarget)


def trtllm_queries_scaled() -> VllmTarget:
    return _planted(_QueriesScaled, TrtllmGenTarget)
