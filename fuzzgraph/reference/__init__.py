"""Computes what a step must give, from the logical batch alone.

`expected` is the float64 truth. `yardstick` is the same in the engine's dtype by plain torch; its
error tells how exact an engine has to be. `second_opinion` is an independent Triton reference. The
oracles compare.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from fuzzgraph.adapted_layer import (
    ADAPTED,
    ADAPTED_OF_RANKS,
    adapted_outputs,
    rank_adapted_outputs,
)
from fuzzgraph.case import (
    LONGEST_CONTEXT,
    EngineConfig,
    attention_layers,
    group_configs,
    output_of,
    recurrent_layers,
)
from fuzzgraph.compressor_layer import compressor_outputs
from fuzzgraph.content import DTYPES, content_for
from fuzzgraph.experts.adapted import ADAPTED_EXPERTS, adapted_expert_outputs
from fuzzgraph.experts.outputs import EXPERTS, OF_RANKS, expert_outputs, rank_outputs
from fuzzgraph.fp8_weights import Fp8Weights
from fuzzgraph.language_head import LOGITS, LOGITS_OF_RANKS, head_outputs, rank_logits
from fuzzgraph.prompt_head import prompt_outputs
from fuzzgraph.recurrent_layers.channel_decay import channel_outputs
from fuzzgraph.recurrent_layers.decayed_attention import linear_outputs
from fuzzgraph.recurrent_layers.delta_recurrence import LONGEST_ROW
from fuzzgraph.recurrent_layers.delta_rule import delta_outputs
from fuzzgraph.recurrent_layers.draft_paths import by_path
from fuzzgraph.recurrent_layers.gated_convolution import gated_conv_outputs
from fuzzgraph.recurrent_layers.mamba2 import recurrent_outputs
from fuzzgraph.reference.attention import attended_layers
from fuzzgraph.reference.committed import committed_outputs
from fuzzgraph.reference.dense_layer import dense_outputs, kept_outputs
from fuzzgraph.reference.draft_layers import LAYER_ATTENTION, layer_outputs
from fuzzgraph.reference.draft_model import draft_model_outputs
from fuzzgraph.reference.geometry import drafts_see, queries_of
from fuzzgraph.reference.group_keys import group_outputs, hidden_streams
from fuzzgraph.reference.metadata import capture_truth, live_truth
from fuzzgraph.reference.output_spec import (
    LAST_ATTENTION,
    RECURRENCES,
    OutputSpec,
    Rounding,
    of_first,
    output_spec,
    rounding_of,
    token_columns,
)
from fuzzgraph.reference.pooled_keys import pooled_outputs
from fuzzgraph.reference.shard import live_tokens, local_outputs
from fuzzgraph.reference.triton_ready import ready_triton
from fuzzgraph.row_mixing import mixed_outputs
from fuzzgraph.world import Batch, IntArray

__all__ = [
    "LAST_ATTENTION",
    "RECURRENCES",
    "Expected",
    "OutputSpec",
    "Rounding",
    "capture_truth",
    "drafts_see",
    "expected",
    "output_spec",
    "live_tokens",
    "live_truth",
    "new_tokens",
    "of_first",
    "rounding_of",
    "second_opinion",
    "token_columns",
    "weight_errors",
    "yardstick",
]


def new_tokens(batch: Batch, config: EngineConfig) -> tuple[IntArray, IntArray]:
    """(tokens, positions) whose KV a step stores, in the order of `slot_mapping`; the same in each
    layer."""
    found = queries_of(batch, config)
    return found.tokens, found.positions


_PASSED_ON = ("mixed", "moe", LAST_ATTENTION)
"""Outputs behind attention whose rows are those of attention."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The truth of one step."""

    outputs: dict[str, torch.Tensor]
    """Name -> float64 or int64. attention [num_tokens, Hq, Dv], in mode draft [raw_bs * topk *
    steps, Hq, Dv] by row, branch, step; swa_attention, the same of a second layer,
    and attention_2 and so on, of further ones of their groups; dense_attention and what stands
    beside it, see `dense_layer`; what a step leaves of pooled keys, see `pooled_keys`, and of
    keys of groups, see `group_keys`; draft_tokens [raw_bs * topk * steps], the token predicted
    after each; state [raw_bs, width]; recurrent
    [num_tokens, width], and gated_delta, channel_delta, linear and gated_conv, the same, see
    `recurrent_layers`; mixed as attention, see `row_mixing`;
    lora [num_tokens, width], see `adapted_layer`, lora_of_ranks [tokens of all data-parallel ranks,
    width], the same; experts, the same, see `experts`, or lora_experts, see `experts.adapted`;
    experts_of_ranks [tokens of all data-parallel ranks, width], the same; logits [num_tokens,
    width], returned_hidden and logits_of_ranks, see `language_head`; moe, see
    `shard`; last_attention [raw_bs, Hq, Dv], in prompts the rows of attention that logits are made
    of; those of a draft model behind attention, see `draft_model`, and those behind a verify,
    see `committed`; what a compressor of keys keeps, see `compressor_layer`; those of several draft
    layers, see `draft_layers`."""
    value_bound: float
    """max |V| that entered the step."""


def expected(
    batch: Batch, config: EngineConfig, promised: Collection[str] | None = None
) -> Expected:
    """The float64 truth of a step, computed from the logical batch alone.

    Args:
        promised: outputs that are compared with it; None for all. Those of recurrent and of draft
            layers are left out where they are not among them.
    """
    layers, bound = attended_layers(batch, config, torch.float64)
    dense, entered = dense_outputs(batch, config, torch.float64)
    outputs, bound = layers | dense, max(bound, entered)
    outputs |= hidden_streams(layers["attention"], batch, config)
    outputs |= _behind_attention(layers["attention"], batch, config)
    if config.recurrent_state:
        outputs["state"] = content_for(config).state_rows(batch, after=True).double()
        for number in range(recurrent_layers(config)):
            name = output_of("recurrent", number)
            if promised is None or name in promised:
                outputs[name] = recurrent_outputs(
                    content_for(config, number), _of_states(batch, config)
                )
        outputs |= _rounded_outputs(batch, config, torch.float64, promised)
    if (config.max_loras or config.draft_adapter) and batch.mode != "draft":
        outputs |= _adapted(batch, config, torch.float64)
    if config.num_experts and batch.mode != "draft":
        outputs |= _experts(batch, config, torch.float64)
    if _has_head(promised):
        outputs |= _behind_head(layers["attention"], batch, config, torch.float64)
    if _has_layers(batch, promised):
        found, entered = layer_outputs(batch, config, torch.float64)
        outputs, bound = outputs | found, max(bound, entered)
    outputs |= group_outputs(batch, config)
    if batch.mode != "draft":
        outputs |= compressor_outputs(batch, config) | kept_outputs(batch, config)
        outputs |= pooled_outputs(batch, config)
    else:
        predicted = queries_of(batch, config).predicted
        assert predicted is not None
        outputs["draft_tokens"] = torch.from_numpy(predicted)
    return Expected(outputs, bound)


def yardstick(
    batch: Batch, config: EngineConfig, promised: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """The same step by plain torch in the engine's dtype; floating outputs only.

    Outputs whose sums are exact (state, recurrent, what a compressor keeps) are not in it, because
    they must be exact.

    Args:
        promised: outputs that are compared with it; None for all. Those of recurrent and of draft
            layers are left out where they are not among them.
    """
    layers, _ = attended_layers(batch, config, DTYPES[config.dtype])
    outputs = layers | dense_outputs(batch, config, DTYPES[config.dtype])[0]
    outputs |= hidden_streams(layers["attention"], batch, config)
    outputs |= _behind_attention(layers["attention"], batch, config)
    if config.recurrent_state:
        outputs |= _rounded_outputs(batch, config, DTYPES[config.dtype], promised)
    if (config.max_loras or config.draft_adapter) and batch.mode != "draft":
        outputs |= _adapted(batch, config, DTYPES[config.dtype])
    if config.num_experts and batch.mode != "draft":
        outputs |= _experts(batch, config, DTYPES[config.dtype])
    if _has_head(promised):
        outputs |= _behind_head(layers["attention"], batch, config, DTYPES[config.dtype])
    if _has_layers(batch, promised):
        outputs |= layer_outputs(batch, config, DTYPES[config.dtype])[0]
    return {name: value for name, value in outputs.items() if value.dtype.is_floating_point}


def weight_errors(
    batch: Batch, config: EngineConfig, weights: Fp8Weights
) -> dict[str, torch.Tensor]:
    """How far kernels that round softmax's weights to FP8 may take outputs from the truth.

    Returns:
        Output of each layer that attends, and of what stands behind the first and passes its rows
        on -> float64, as large as the output.
    """
    errors, _ = attended_layers(batch, config, torch.float64, average=weights.errors)
    behind = _behind_attention(errors["attention"], batch, config)
    return errors | {name: behind[name] for name in _PASSED_ON if name in behind}


def _adapted(batch: Batch, config: EngineConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What layers with adapters give, for this rank and for those whose tokens they compute too."""
    found = {ADAPTED: adapted_outputs(batch, config, dtype)}
    if config.dp_size > 1 and config.max_loras:
        found[ADAPTED_OF_RANKS] = rank_adapted_outputs(batch, config, dtype)
    return found


def _experts(batch: Batch, config: EngineConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What experts give, for this rank and for those whose tokens they compute too."""
    if config.max_loras:
        return {ADAPTED_EXPERTS: adapted_expert_outputs(batch, config, dtype)}
    found = {EXPERTS: expert_outputs(batch, config, dtype)}
    if config.dp_size > 1:
        found[OF_RANKS] = rank_outputs(batch, config, dtype)
    return found


def _has_head(promised: Collection[str] | None) -> bool:
    """Whether the model has a head, which no config says."""
    return promised is not None and not {LOGITS, LOGITS_OF_RANKS}.isdisjoint(promised)


def _behind_head(
    out: torch.Tensor, batch: Batch, config: EngineConfig, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """What a model's head gives, for this rank and for those that share it."""
    if batch.mode == "prefill":
        return prompt_outputs(out, batch, config, dtype)
    found = head_outputs(out, config, dtype)
    if config.gathered_logits:
        found[LOGITS_OF_RANKS] = rank_logits(out, batch, config, dtype)
    return found


def _has_layers(batch: Batch, promised: Collection[str] | None) -> bool:
    """Whether outputs of a draft model's layers are asked for, in a step that has some."""
    asked = promised is None or LAYER_ATTENTION in promised
    return asked and batch.mode == "draft_extend"


_ROUNDED = {
    "selective_scan": (LONGEST_CONTEXT, recurrent_outputs),
    "gated_delta": (LONGEST_ROW, delta_outputs),
    "channel_delta": (LONGEST_ROW, channel_outputs),
    "linear": (LONGEST_ROW, linear_outputs),
    "gated_conv": (LONGEST_CONTEXT, gated_conv_outputs),
}
"""Output -> (longest context for which it is computed, what computes it)."""


def _rounded_outputs(
    batch: Batch,
    config: EngineConfig,
    dtype: torch.dtype,
    promised: Collection[str] | None = None,
) -> dict[str, torch.Tensor]:
    """Layers whose outputs the dtype rounds: those that are promised."""
    batch = _of_states(batch, config)
    return {
        output_of(name, number): outputs(content_for(config, number), batch, dtype)
        for name, (longest, outputs) in _ROUNDED.items()
        for number in range(recurrent_layers(config))
        if config.max_context_len <= longest and (promised is None or name in promised)
    }


def _of_states(batch: Batch, config: EngineConfig) -> Batch:
    """A step as layers with a state see it: drafts in a tree go on from their parents."""
    trees = config.spec_topk > 1 and batch.tree_parents is not None
    return by_path(batch) if trees else batch


def _behind_attention(
    out: torch.Tensor, batch: Batch, config: EngineConfig
) -> dict[str, torch.Tensor]:
    """What stands behind attention of the first layer."""
    outputs = dict.fromkeys(mixed_outputs(config), out)
    if batch.mode == "prefill":
        outputs[LAST_ATTENTION] = out[batch.new_lens.cumsum() - 1]
    if config.attn_tp_size > 1 and batch.mode != "draft":
        outputs["moe"] = local_outputs(out, batch, config)
    outputs |= committed_outputs(out, batch, config)
    return {**outputs, **draft_model_outputs(out, batch, config)}


def second_opinion(batch: Batch, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Attention by an eager Triton kernel over unpaged keys: a reference that shares no arithmetic.

    Raises:
        AdapterUnavailable: Triton is not usable here.
    """
    # Before the kernel's module is imported: it decides then whether it is compiled.
    ready_triton()
    from fuzzgraph.reference.triton_eager import second_opinion as triton_opinion

    groups = group_configs(config)
    return {
        layer.output: triton_opinion(batch.groups[layer.group], groups[layer.group], number)
        for number, layer in enumerate(attention_layers(config))
    }
