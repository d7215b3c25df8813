"""KV in FP4 (`--kv-cache-dtype nvfp4`): the engine's own recipe and pool, on a device that has it.

Real: `NVFP4KVCacheMethod`, which says what the pool holds, loads the scales that a checkpoint left
on the layers, and has new keys and values quantised and stored; the kernel in Triton that stores
them. Modelled: FlashInfer's `nvfp4_kv_quantize`. Stood in for: the device that the engine asks for,
one with compute capability 10, or with 12 where attention is XQA.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import NotInRelease
from fuzzgraph.kernel_models.nvfp4 import nvfp4_kv_quantize
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.flashinfer import package

_QUANTIZATION = "sglang.srt.layers.quantization"
_METHOD = f"{_QUANTIZATION}.fp4_kv_cache_quant_method"
_STORE = f"{_QUANTIZATION}.nvfp4_kv_cache"
"""From 0.5.21 on; before, pools have scales by slot alone, which XQA reads."""
_ASKING = (_METHOD, f"{_QUANTIZATION}.kvfp4_tensor")
_FOR_CHECKPOINTS = 6.0
"""By what the engine multiplies scales of a checkpoint on such a device, the largest number of e2m1
(`load_scales_from_model`); one of exactly 1 it takes for none."""
_TOKENS = 4
"""Of a page, whose scales of values lie side by side."""


def fp4_method(config: EngineConfig, layers: int, device: torch.device, server_args: Any) -> Any:
    """The engine's recipe for a pool of so many layers, told its backends as the engine tells it
    (kv_cache_configurator.py `_build_fp4_quant_method`).

    Raises:
        NotInRelease: pools have no scales in the layout of the kernel, as up to 0.5.20, or, by XQA,
            the release asks for its device in another way, as up to 0.5.18.
    """
    by_xqa = config.trtllm_kernel == "xqa"
    if not by_xqa and not has_module(_STORE):
        raise NotInRelease("kv_dtype='nvfp4' is driven from sglang 0.5.21 on")
    asking = [vars(engine_module(name)) for name in _ASKING]
    if not all("get_platform" in names for names in asking):
        raise NotInRelease("kv_dtype='nvfp4' by XQA is driven from sglang 0.5.19 on")
    device_asked_for = Stub(is_sm90=False, is_sm100=not by_xqa, is_sm120=by_xqa)
    for names in asking:
        names["get_platform"] = lambda: device_asked_for
    if device.type == "cpu":
        put_model(package(), "nvfp4_kv_quantize", nvfp4_kv_quantize)
    method = call_with_known(
        engine_module(_METHOD).KV_CACHE_QUANT_REGISTRY["nvfp4"],
        num_layers=layers,
        device=device.type,
        page_size=config.page_size,
    )
    if hasattr(method, "configure_attention_backends_from_server_args"):  # as from 0.5.21 on
        method.configure_attention_backends_from_server_args(server_args)
    return method


def checkpoint_scale(scale: float, config: EngineConfig) -> float:
    """What a checkpoint leaves on a layer whose stored numbers times `scale` are keys or values."""
    return scale if config.trtllm_kernel == "xqa" else scale / _FOR_CHECKPOINTS


def load_scales(kv: Any, layers: Iterable[Any]) -> None:
    """Have the pool's recipe find the scales on the layers of a model."""
    held = [Stub(self_attn=Stub(attn=layer)) for layer in layers]
    kv.quant_method.load_scales_from_model(Stub(layers=held))


def fp4_planes(kv: Any, layer: int) -> tuple[torch.Tensor, ...]:
    """Packed keys and values of a layer, each [slots, heads, D / 2], and by page the scales of keys
    [pages, page_size, heads, D / 16] and of values [pages, page_size / 4, 4, heads, D / 16]; both
    by slot for XQA, [slots, heads, D / 16].

    Source: FlashInfer 0.6.18, fp4_quantization.py `nvfp4_quantize_paged_kv_cache`: in a page and
    head, scale s of value t lies at t // 4 * 4 * S + s * 4 + t % 4.
    """
    packed = kv.k_buffer[layer], kv.v_buffer[layer]
    if getattr(kv, "native_k_scale_buffer", None) is None:
        return (*packed, kv.k_scale_buffer[layer], kv.v_scale_buffer[layer])
    of_keys, of_values = kv.native_k_scale_buffer[layer], kv.native_v_scale_buffer[layer]
    by_four = of_values.unflatten(-1, (-1, _TOKENS)).flatten(2, 3)
    by_four = by_four.unflatten(2, (-1, of_values.shape[-1]))
    scales = of_keys.permute(0, 2, 1, 3), by_four.permute(0, 2, 4, 1, 3)
    return (*packed, *scales)
