"""Engines that take one step wrong with KV in FP8; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.kernel_models import flash_attention, trtllm_gen
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession, BackendTarget
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.backends.triton import TritonSession, TritonTarget
from fuzzgraph.targets.sglang.backends.trtllm_mha import TRTLLM_MHA
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from tests.targets.sglang.planted import PlantedBackend

__all__ = [
    "keys_stored_by_the_scale_of_values",
    "keys_stored_without_a_scale",
    "scales_swapped",
    "scales_swapped_on_triton",
    "slots_of_the_other_pool",
    "values_as_they_are_stored",
    "values_of_triton_as_they_are_stored",
    "values_of_trtllm_as_they_are_stored",
]


def _fa3(wrong: Callable[..., Any]) -> BackendTarget:
    kernels = tuple(
        (holder, name, wrong if name.startswith("flash_attn_with_kvcache") else model)
        for holder, name, model in FA3.kernels
    )
    return replace(FA3, kernels=kernels).target("sglang-fa3", "decode")


def scales_swapped() -> BackendTarget:
    """FlashAttention gets the scale of values for keys, and that of keys for values."""

    def attend(*args: Any, k_descale: Any = None, v_descale: Any = None, **named: Any) -> Any:
        named |= {"k_descale": v_descale, "v_descale": k_descale}
        return flash_attention.flash_attn_with_kvcache(*args, **named)

    return _fa3(attend)


def values_as_they_are_stored() -> BackendTarget:
    """FlashAttention gets no scale of values."""

    def attend(*args: Any, v_descale: Any = None, **named: Any) -> Any:
        return flash_attention.flash_attn_with_kvcache(*args, **named)

    return _fa3(attend)


def keys_stored_without_a_scale() -> BackendTarget:
    """The pool stores keys as they are, which attention then multiplies with their scale."""

    def adapt(runner: Any) -> None:
        pool = runner.token_to_kv_pool
        store = pool.set_kv_buffer

        def unscaled(layer: Any, loc: Any, k: Any, v: Any, *scales: Any, **named: Any) -> None:
            named.pop("k_scale", None)
            store(layer, loc, k, v, None, *scales[1:], **named)

        pool.set_kv_buffer = unscaled

    return replace(FA3, adapt=adapt).target("sglang-fa3", "decode")


def values_of_trtllm_as_they_are_stored() -> BackendTarget:
    """As up to 0.5.13: the scale of values is 1."""

    def decode(*args: Any, bmm2_scale: Any = 1.0, **named: Any) -> Any:
        return trtllm_gen.trtllm_batch_decode_with_kv_cache(*args, **named)

    kernels = tuple(
        (holder, name, Stub(decode=Stub(trtllm_batch_decode_with_kv_cache=decode)))
        for holder, name, _ in TRTLLM_MHA.kernels
    )
    return replace(TRTLLM_MHA, kernels=kernels).target("sglang-trtllm-mha", "decode")


def _triton(scales: Callable[[float, float], tuple[float, float]]) -> TritonTarget:
    """Triton attention that gets other scales of keys and values than the layer has."""

    class Changed(TritonSession):
        def _open_backend(self, runner: ModelRunner) -> Any:
            backend = super()._open_backend(runner)
            real = backend.forward_decode

            def decode(q: Any, k: Any, v: Any, layer: Any, *args: Any, **named: Any) -> Any:
                own = layer.k_scale_float, layer.v_scale_float
                layer.k_scale_float, layer.v_scale_float = scales(*own)
                try:
                    return real(q, k, v, layer, *args, **named)
                finally:
                    layer.k_scale_float, layer.v_scale_float = own

            backend.forward_decode = decode
            return backend

    class Target(TritonTarget):
        def open_session(self, config: EngineConfig, graphs: GraphEngine) -> TritonSession:
            return Changed(config, graphs)

    return Target("sglang-triton", "decode")


def scales_swapped_on_triton() -> TritonTarget:
    """Each gets the scale of the other."""
    return _triton(lambda keys, values: (values, keys))


def values_of_triton_as_they_are_stored() -> TritonTarget:
    """The scale of values is 1."""
    return _triton(lambda keys, values: (keys, 1.0))


def _trtllm(change: Callable[[Any], None]) -> BackendTarget:
    """The backend, each of which `change` gets when it is opened."""

    class Changed(BackendSession):
        def _open_backend(self, runner: ModelRunner) -> Any:
            backend = super()._open_backend(runner)
            change(backend)
            return backend

    return PlantedBackend(Changed, TRTLLM_MHA, name="trtllm-mha")


def keys_stored_by_the_scale_of_values() -> BackendTarget:
    """The kernel that quantises divides keys by the scale of values."""

    def change(backend: Any) -> None:
        real = backend._fused_fp8_qkv_kv_cache

        def stored(q: Any, k: Any, v: Any, layer: Any, batch: Any) -> Any:
            scale, layer.k_scale = layer.k_scale, layer.v_scale
            try:
                return real(q, k, v, layer, batch)
            finally:
                layer.k_scale = scale

        backend._fused_fp8_qkv_kv_cache = stored

    return _trtllm(change)


def slots_of_the_other_pool() -> BackendTarget:
    """As in 0.5.9: keys and values behind a window go to the slots of all layers."""

    def change(backend: Any) -> None:
        backend._get_layer_cache_loc = lambda layer, batch: batch.out_cache_loc

    return _trtllm(change)
