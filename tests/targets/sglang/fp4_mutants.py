"""Lines of sglang 0.5.23 about KV in FP4, each with another in its place; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import Mode
from fuzzgraph.targets.sglang.backends.attention_backend import BackendTarget
from fuzzgraph.targets.sglang.backends.trtllm_mha import TRTLLM_MHA
from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang.changed_lines import (
    change_line,
    changed_function,
    changed_method,
    replace_while_running,
)
from tests.targets.sglang.planted import with_changed_sessions

_BACKEND = "sglang.srt.layers.attention.trtllm_mha_backend"
_METHOD = "sglang.srt.layers.quantization.fp4_kv_cache_quant_method"


def _planted(change: Callable[[Any], None], mode: Mode = "decode") -> BackendTarget:
    name = "sglang-trtllm-mha" if mode == "decode" else "sglang-trtllm-mha-verify"
    return with_changed_sessions(TRTLLM_MHA.target(name, mode), change)


def _of_backend(
    method: str, line: str, other: str, mode: Mode = "decode"
) -> Callable[[], BackendTarget]:
    return lambda: _planted(
        lambda session: change_line(session._own_backend, method, line, other), mode
    )


def _of_pool(method: str, line: str, other: str) -> Callable[[], BackendTarget]:
    def change(session: Any) -> None:
        change_line(session.roots["kv_pool"], method, line, other)

    return lambda: _planted(change)


def _of_recipe(method: str, line: str, other: str) -> Callable[[], BackendTarget]:
    def change(session: Any) -> None:
        change_line(session.roots["kv_pool"].quant_method, method, line, other)

    return lambda: _planted(change)


def _of_layers_buffers(line: str, other: str) -> Callable[[], BackendTarget]:
    def change(session: Any) -> None:
        module = engine_module(_BACKEND)
        replace_while_running(
            session,
            module,
            "_trtllm_native_nvfp4_kv_buffer",
            lambda real: changed_function(real, line, other),
        )

    return lambda: _planted(change)


scales_of_keys_for_values = _of_layers_buffers(
    "v_scale = pool.native_v_scale_buffer[local_layer_id]",
    "v_scale = pool.native_k_scale_buffer[local_layer_id]",
)
packed_keys_for_values = _of_layers_buffers(
    "pool.v_buffer[local_layer_id],", "pool.k_buffer[local_layer_id],"
)
planes_of_scales_swapped = _of_backend(
    "_get_nvfp4_decode_kv_cache",
    "kv_cache_block_scales = (k_scale, v_scale)",
    "kv_cache_block_scales = (v_scale, k_scale)",
)
values_as_their_blocks_are = _of_backend(
    "forward_decode", "bmm2_scale = v_scale", "bmm2_scale = 1.0"
)
keys_by_the_scale_of_values = _of_backend(
    "forward_decode", "q_scale * k_scale * layer.scaling", "q_scale * v_scale * layer.scaling"
)
queries_of_16_bits = _of_backend(
    "forward_decode",
    "if self.decode_uses_native_fp4 and not self.is_xqa_impl:\n        # SM100",
    "if False:\n        # SM100",
)
outputs_stay_in_fp8 = _of_backend(
    "_finalize_nvfp4_output", "return output.to(self.q_data_type)", "return output"
)
a_packed_row_of_all_columns = _of_backend(
    "_get_nvfp4_decode_kv_cache", "layer.head_dim // 2", "layer.head_dim"
)
values_stored_with_scales_of_keys = _of_recipe(
    "quantize_and_store",
    "cache_v_fp4_sf = cache_v_fp4_sf.view(torch.uint8)",
    "cache_v_fp4_sf = cache_k_fp4_sf",
)
values_quantised_by_the_scale_of_keys = _of_pool(
    "_quantized_scales",
    "v_scale = self.quant_method.v_scales_gpu[",
    "v_scale = self.quant_method.k_scales_gpu[",
)
scales_of_values_stored_over_those_of_keys = _of_pool(
    "_set_quantized_kv_buffer",
    '"native_v_scale_buffer": self.native_v_scale_buffer[local_layer_id]',
    '"native_v_scale_buffer": self.native_k_scale_buffer[local_layer_id]',
)
scales_by_slot_of_keys_for_values = _of_pool(
    "get_raw_kv_buffer",
    "v_scale = self.v_scale_buffer[local_layer_id]",
    "v_scale = self.k_scale_buffer[local_layer_id]",
)
linear_scales_stored_for_keys_twice = _of_pool(
    "_set_quantized_kv_buffer",
    "self.v_scale_buffer[local_layer_id]\n            if",
    "self.k_scale_buffer[local_layer_id]\n            if",
)
scales_not_stored = _of_pool(
    "_set_quantized_kv_buffer", "if self.native_k_scale_buffer is not None:", "if False:"
)
verifies_read_plain_keys = _of_backend(
    "forward_extend",
    "uses_native_fp4 = self._forward_extend_uses_native_fp4(forward_batch)",
    "uses_native_fp4 = False",
    "target_verify",
)
verified_by_the_scale_of_keys = _of_backend(
    "forward_extend", "bmm2_scale = v_scale", "bmm2_scale = k_scale", "target_verify"
)


def scales_of_checkpoints_as_they_are() -> BackendTarget:
    """Scales of keys are not brought to what kernels of such a device take."""
    method: Any = engine_module(_METHOD).NVFP4KVCacheMethod
    line = "if get_platform().is_sm100 and k_scale != 1.0:"
    wrong = changed_method(method, "load_scales_from_model", line, "if False:")

    def change(session: Any) -> None:
        pool = session.roots["kv_pool"]
        layers = [_Held(_Held(attn)) for attn in session.roots["model"].layers]
        wrong(pool.quant_method, _Layers(layers))

    return _planted(change)


class _Held:
    def __init__(self, held: Any) -> None:
        self.self_attn = self.attn = held


class _Layers:
    def __init__(self, layers: Any) -> None:
        self.layers = layers
