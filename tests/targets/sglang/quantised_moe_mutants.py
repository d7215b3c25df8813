"""Planted bugs of sglang's experts in FP8 and INT8, each the change of one line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.moe import MoeSession, MoeTarget
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.world import Batch
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line_elsewhere, changed_method
from tests.targets.sglang.planted import with_changed_sessions

_KERNELS = "sglang.kernels.ops.moe.fused_moe_triton_kernels"
_SEQUENCE = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"
_QUANTISATION = "sglang.srt.layers.quantization"
_LOADED = "process_weights_after_loading"


def _opened(change: Callable[[Any], None]) -> Callable[[], MoeTarget]:
    return lambda: with_changed_sessions(MoeTarget("sglang-moe", "decode"), change)


def _kernel(line: str, other: str) -> Callable[[], MoeTarget]:
    """The target with one line of the product of tokens and experts changed."""
    return _opened(
        lambda session: change_kernel(session, _KERNELS, "fused_moe_kernel", line, other)
    )


def _line(holder: str, name: str, line: str, other: str) -> Callable[[], MoeTarget]:
    return _opened(lambda session: change_line_elsewhere(session, holder, name, line, other))


def _products(line: str, other: str) -> Callable[[], MoeTarget]:
    return _line(_SEQUENCE, "_fused_moe_kernel_sequence", line, other)


def _call(line: str, other: str) -> Callable[[], MoeTarget]:
    return _line(_SEQUENCE, "invoke_fused_moe_kernel", line, other)


class _LoadsOtherwise(MoeSession):
    """Runs the engine, its loading too, with one line changed of what it makes of a checkpoint."""

    line, other = "", ""

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        owner, name = engine_module(f"{_QUANTISATION}.fp8").Fp8MoEMethod, _LOADED
        changed = changed_method(owner, name, self.line, self.other)
        with super().engine_runs(batch), replaced_names([owner], {name: changed}):
            yield


class _LoadingTarget(MoeTarget):
    def __init__(self, line: str, other: str) -> None:
        super().__init__("sglang-moe", "decode")
        self._lines = {"line": line, "other": other}

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> MoeSession:
        kind: type[MoeSession] = type("Loads", (_LoadsOtherwise,), self._lines)
        return kind(config, graphs)


def _loaded(line: str, other: str) -> Callable[[], MoeTarget]:
    return lambda: _LoadingTarget(line, other)


int8_taken_for_fp8 = _products(
    "use_int8_w8a8=use_int8_w8a8,\n        use_int8_w8a16=use_int8_w8a16,\n"
    "        use_int4_w4a16=use_int4_w4a16,\n        per_channel_quant=per_channel_quant,\n"
    "        block_shape=block_shape,\n        c_sorted",
    "use_int8_w8a8=use_fp8_w8a8,\n        use_int8_w8a16=use_int8_w8a16,\n"
    "        use_int4_w4a16=use_int4_w4a16,\n        per_channel_quant=per_channel_quant,\n"
    "        block_shape=block_shape,\n        c_sorted",
)
"""The survivor of a sample of mutants (reports/mutants/across-fourth.toml)."""
first_scale_of_inputs_for_both = _products(
    "        a2_scale,\n        w2_scale", "        a1_scale,\n        w2_scale"
)
first_scale_of_weights_for_both = _products(
    "        a2_scale,\n        w2_scale", "        a2_scale,\n        w1_scale"
)
blocks_forgotten = _products(
    "        block_shape=block_shape,\n        a_use_tma",
    "        block_shape=None,\n        a_use_tma",
)
first_group_of_inputs = _kernel("a_scale_ptrs + offs_ks * stride_ask", "a_scale_ptrs")
first_group_of_weights = _kernel("b_scale_ptrs + offs_ks * stride_bsk", "b_scale_ptrs")
block_of_another_expert = _kernel(
    "b_scale_ptr + off_experts * stride_bse + offs_bsn * stride_bsn",
    "b_scale_ptr + offs_bsn * stride_bsn",
)
first_block_of_rows = _kernel("offs_bsn = pid_n * BLOCK_SIZE_N // group_n", "offs_bsn = 0")
scale_of_another_token = _kernel(
    "a_scale = tl.load(a_scale_ptrs, mask=token_mask, other=0.0)[:, None]",
    "a_scale = tl.load(a_scale_ptr, mask=token_mask, other=0.0)[:, None]".replace(
        "a_scale_ptr,", "a_scale_ptr + 0 * offs_token,"
    ),
)
scale_of_the_first_expert = _kernel("tl.load(b_scale_ptr + off_experts)", "tl.load(b_scale_ptr)")
unscaled = _kernel("accumulator *= a_scale * b_scale", "accumulator *= a_scale")
last_columns_left_out = _kernel(
    "range(0, K, BLOCK_SIZE_K)", "range(0, K - BLOCK_SIZE_K, BLOCK_SIZE_K)"
)
strides_of_blocks_swapped = _call(
    "B_scale.stride(2) if B_scale is not None and B_scale.ndim == 3 else 0",
    "B_scale.stride(1) if B_scale is not None and B_scale.ndim == 3 else 0",
)
smallest_scale_of_inputs = _loaded("layer.w2_input_scale.max()", "layer.w2_input_scale.min()")
not_quantised_again = _loaded(
    "scaled_fp8_quant(dq_weight, max_w13_scales[expert_id])",
    "scaled_fp8_quant(dq_weight, layer.w13_weight_scale[expert_id][shard_id])",
)
scales_of_the_other_product = _line(
    f"{_QUANTISATION}.w8a8_int8:W8A8Int8MoEMethod", "get_triton_quant_info",
    "w2_scale=layer.w2_weight_scale", "w2_scale=layer.w13_weight_scale",
)  # fmt: skip
rows_by_matrix = _line(
    f"{_QUANTISATION}.w8a8_fp8:W8A8FP8MoEMethod", "get_triton_quant_info",
    "per_channel_quant=True", "per_channel_quant=False",
)  # fmt: skip
int8_by_128 = _opened(
    lambda session: change_kernel(
        session, "sglang.kernels.ops.quantization.int8_kernel", "_per_token_quant_int8",
        "scale_x = absmax / 127", "scale_x = absmax / 128",
    )
)  # fmt: skip
int8_of_one_row = _opened(
    lambda session: change_kernel(
        session, "sglang.kernels.ops.quantization.int8_kernel", "_per_token_quant_int8",
        "tl.store(scale_ptr + row_id, ", "tl.store(scale_ptr, ",
    )
)  # fmt: skip
