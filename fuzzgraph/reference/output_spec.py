"""Says which rows, columns and dtype an output must have, whatever it holds.

Rows follow from the sizes that an observation declares, everything else from the case alone.
`expected` says what live rows hold; padded rows may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from fuzzgraph.adapted_layer import (
    ADAPTED,
    ADAPTED_INPUT,
    ADAPTED_OF_RANKS,
    adapted_coarseness,
    adapted_columns,
    shared_columns,
)
from fuzzgraph.block_index import WIDTH as GROUP_WIDTH
from fuzzgraph.case import EngineConfig, Mode, attention_outputs
from fuzzgraph.case.prefix_parts import merged_parts
from fuzzgraph.compressor_layer import INDEX_STATES, STATES, STRAYS, compressor_shape
from fuzzgraph.content import DTYPES, STATE_WIDTH, hidden_width
from fuzzgraph.data_ranks import rank_sizes
from fuzzgraph.draft_head import LOGITS
from fuzzgraph.experts.adapted import ADAPTED_EXPERTS, adapted_expert_coarseness
from fuzzgraph.experts.columns import EXPERT_WIDTH
from fuzzgraph.experts.outputs import EXPERTS, OF_RANKS, expert_coarseness
from fuzzgraph.fp8_weights import E4M3_PART, E4M3_SMALLEST_STEP
from fuzzgraph.language_head import (
    HIDDEN,
    LOGITS_OF_RANKS,
    PADDED_VOCABULARY,
    VOCABULARY,
    logits_coarseness,
    returned_columns,
)
from fuzzgraph.language_head import LOGITS as HEAD_LOGITS
from fuzzgraph.observation import Observation
from fuzzgraph.pooled_blocks import levels
from fuzzgraph.prompt_head import PROMPT_LOGPROBS, PROMPT_OUTPUTS, asked_count, top_count
from fuzzgraph.recurrent_layers.channel_decay import channel_heads
from fuzzgraph.recurrent_layers.decayed_attention import LINEAR_OUTPUT
from fuzzgraph.recurrent_layers.delta_rule import delta_heads
from fuzzgraph.recurrent_layers.gated_convolution import GATED_COLUMNS
from fuzzgraph.recurrent_layers.mamba2 import scan_heads
from fuzzgraph.reference.committed import COMMITS, context_shape
from fuzzgraph.reference.dense_layer import DENSE_OUTPUT, INDEX_KEYS, INDEX_WIDTH, LAYER_STRAYS
from fuzzgraph.reference.draft_layers import (
    CHAINED_HIDDEN,
    LAYER_HIDDEN,
    draft_layers,
    of_layers,
)
from fuzzgraph.reference.draft_model import parents_of
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS, HIDDEN_STREAMS
from fuzzgraph.reference.pooled_keys import POOLED_KEYS, POOLED_STRAYS
from fuzzgraph.reference.shard import padded_tokens, shard
from fuzzgraph.row_mixing import coarseness
from fuzzgraph.world import Batch

# Engines use either width for token ids; both hold every id.
_TOKEN_IDS = (torch.int64, torch.int32)
_OF_TOKENS: Mapping[str, Callable[[EngineConfig], int]] = {
    "recurrent": lambda config: scan_heads(config).output,
    "selective_scan": lambda config: scan_heads(config).output,
    "gated_delta": lambda config: delta_heads(config).output,
    "channel_delta": lambda config: channel_heads(config).output,
    "linear": lambda config: LINEAR_OUTPUT,
    "gated_conv": lambda config: GATED_COLUMNS,
}
RECURRENCES = ("state", *_OF_TOKENS)
"""Outputs of layers with recurrent state."""
_FP8_OUTPUT = (E4M3_PART, E4M3_SMALLEST_STEP / 2)
LAST_ATTENTION = "last_attention"
"""Attention of the last token of each request of a prompt, of which a server makes logits."""
_WIDE = ("state", "recurrent", GROUP_KEYS)
"""Those in float32 whatever the model's dtype."""


_NUMBER = re.compile(r"_\d+$")


def of_first(name: str) -> str:
    """The output of the first layer of a kind, by that of any: the inverse of `case.output_of`.

    >>> of_first("gated_delta_2"), of_first("gated_delta")
    ('gated_delta', 'gated_delta')
    """
    return _NUMBER.sub("", name)


def token_columns(name: str, config: EngineConfig) -> int:
    """Columns of what a layer with recurrent state shows of each token.

    >>> token_columns("gated_delta", EngineConfig(linear_head_dim=128))
    256
    """
    return _OF_TOKENS[of_first(name)](config)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Rows, columns and dtypes of an output."""

    rows: int
    columns: tuple[int, ...]
    """Shape of one row."""
    dtypes: tuple[torch.dtype, ...]
    """The output must have one of these."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What decides the tolerance of an output, beside the values that entered it."""

    dtype: torch.dtype
    """The floating dtype that the model computes it in."""
    relative: float = 0.0
    """How far the model itself takes a value from the truth, as a part of the value."""
    absolute: float | torch.Tensor = 0.0
    """The same for small values; or of each element, of the output's shape."""

    def behind(self, errors: torch.Tensor) -> Rounding:
        """Of values that are off already, each by so much: what is off is rounded as well."""
        return replace(self, absolute=self.absolute + (1 + self.relative) * errors)

    def of_both(self) -> Rounding:
        """For two results of the engine: each may be off, and neither is the truth."""
        # With r * t + a between them, a truth t is at most 1 / (1 - r) times the result and a.
        stretch = 2 / (1 - self.relative)
        return Rounding(self.dtype, stretch * self.relative, stretch * self.absolute)


def rounding_of(name: str, config: EngineConfig) -> Rounding:
    """How an output rounds."""
    dtype = torch.float32 if of_first(name) in _WIDE else DTYPES[config.dtype]
    if name in (EXPERTS, OF_RANKS):
        return Rounding(dtype, absolute=expert_coarseness(config, dtype))
    if name in (HEAD_LOGITS, LOGITS_OF_RANKS):
        return Rounding(dtype, absolute=logits_coarseness(dtype))
    if name in PROMPT_OUTPUTS:  # a logit, and a mean of all behind a logarithm
        return Rounding(dtype, absolute=2 * logits_coarseness(dtype))
    if name == ADAPTED_EXPERTS:
        return Rounding(dtype, *adapted_expert_coarseness(dtype))
    if name in (ADAPTED, ADAPTED_OF_RANKS):
        return Rounding(dtype, relative=adapted_coarseness(dtype))
    relative, absolute = coarseness(name, config)
    relative += merged_parts(config) * torch.finfo(dtype).eps / 2  # each sum is rounded
    in_fp8 = config.kv_dtype == "nvfp4" and config.trtllm_kernel == "trtllm_gen"
    if in_fp8 and name in (*attention_outputs(config), "mixed"):
        # Kernels with keys in FP4 give float8_e4m3fn, from which a layer behind takes it on.
        given, least = _FP8_OUTPUT
        relative, absolute = relative + (1 + relative) * given, absolute + (1 + relative) * least
    return Rounding(dtype, relative, absolute)


def output_spec(
    name: str, seen: Observation, batch: Batch, config: EngineConfig
) -> OutputSpec | None:
    """What output `name` of one run must look like; None for a name without a reference."""
    heads = (config.num_q_heads, config.v_head_dim)
    dtypes = (rounding_of(name, config).dtype,)
    if name in (*attention_outputs(config), DENSE_OUTPUT, HIDDEN_STREAMS, "mixed"):
        return OutputSpec(_token_rows(seen, batch, config), heads, dtypes)
    if _mode(batch, config) == "prefill" and name in (HEAD_LOGITS, HIDDEN, *PROMPT_OUTPUTS):
        return _of_prompts(name, seen, batch, config)
    if name == HEAD_LOGITS:  # engines widen them before they sample
        rows = _token_rows(seen, batch, config)
        return OutputSpec(rows, (VOCABULARY,), (torch.float32,))
    if name == LOGITS_OF_RANKS:
        columns = PADDED_VOCABULARY // config.dp_size
        return OutputSpec(sum(rank_sizes(batch, config)), (columns,), dtypes)
    if name == HIDDEN:
        return OutputSpec(_token_rows(seen, batch, config), (returned_columns(config),), dtypes)
    if name == LAST_ATTENTION:
        # Of an idle rank's made-up requests no logits are asked for.
        return OutputSpec(batch.raw_bs, heads, dtypes) if batch.raw_bs else None
    if name == "draft_tokens":
        return OutputSpec(_token_rows(seen, batch, config), (), _TOKEN_IDS)
    if name == "state":
        return OutputSpec(seen.padded_bs, (STATE_WIDTH,), dtypes)
    if of_first(name) in _OF_TOKENS:
        columns = token_columns(name, config)
        return OutputSpec(_token_rows(seen, batch, config), (columns,), dtypes)
    if name == ADAPTED:
        return OutputSpec(_token_rows(seen, batch, config), (adapted_columns(config),), dtypes)
    if name == ADAPTED_EXPERTS:
        return OutputSpec(_token_rows(seen, batch, config), (ADAPTED_INPUT,), dtypes)
    if name == ADAPTED_OF_RANKS:
        return OutputSpec(sum(rank_sizes(batch, config)), (shared_columns(config),), dtypes)
    if name == EXPERTS:
        return OutputSpec(_token_rows(seen, batch, config), (EXPERT_WIDTH,), dtypes)
    if name == OF_RANKS:
        return OutputSpec(sum(rank_sizes(batch, config)), (EXPERT_WIDTH,), dtypes)
    if name == "moe":
        return OutputSpec(_share(seen, batch, config), heads, dtypes)
    if name == "commits":
        return OutputSpec(batch.raw_bs, (COMMITS,), _TOKEN_IDS)
    if name == "committed_tokens":
        return OutputSpec(batch.num_tokens, (), _TOKEN_IDS)
    if name in (STATES, INDEX_STATES, STRAYS):
        kinds = _TOKEN_IDS if name == STRAYS else dtypes
        return OutputSpec(batch.raw_bs, compressor_shape(name, config), kinds)
    if name == INDEX_KEYS:
        return OutputSpec(batch.num_tokens, (INDEX_WIDTH,), dtypes)
    if name == POOLED_KEYS:
        width = len(levels(config)) * config.num_kv_heads * config.head_dim
        return OutputSpec(batch.raw_bs, (width,), _TOKEN_IDS)
    if name == GROUP_KEYS:
        steps = config.spec_steps if _mode(batch, config) == "draft" else 1
        return OutputSpec(batch.num_tokens * steps, (GROUP_WIDTH,), dtypes)
    if name in (GROUP_STRAYS, LAYER_STRAYS, POOLED_STRAYS):
        return OutputSpec(batch.raw_bs, (), _TOKEN_IDS)
    if name == "draft_context":
        return OutputSpec(batch.num_tokens, context_shape(config), dtypes)
    if name in (*map(of_layers, attention_outputs(config)), *LAYER_HIDDEN, *CHAINED_HIDDEN):
        return _of_draft_layers(name, seen, batch, config)
    return _of_draft_model(name, seen, batch, config)


def _of_prompts(
    name: str, seen: Observation, batch: Batch, config: EngineConfig
) -> OutputSpec | None:
    """Behind a head: by request, by token, or by token that asks; none of an idle rank's rows."""
    if name == HIDDEN and config.returned_hidden != "last":
        rows = _token_rows(seen, batch, config)
        return OutputSpec(rows, (returned_columns(config),), (DTYPES[config.dtype],))
    if not batch.raw_bs:
        return None
    if name == HIDDEN:
        return OutputSpec(batch.raw_bs, (returned_columns(config),), (DTYPES[config.dtype],))
    if name == HEAD_LOGITS:
        return OutputSpec(batch.raw_bs, (VOCABULARY,), (torch.float32,))
    rows = asked_count(batch) if name == PROMPT_LOGPROBS else top_count(batch)
    return OutputSpec(rows, (), (torch.float32,))


def _of_draft_layers(
    name: str, seen: Observation, batch: Batch, config: EngineConfig
) -> OutputSpec:
    """By token, or by row that accepted one, and then by layer."""
    dtypes, layers = (DTYPES[config.dtype],), draft_layers(config)
    tokens = _token_rows(seen, batch, config) * layers
    if name in (LAYER_HIDDEN[0], CHAINED_HIDDEN[0]):
        return OutputSpec(tokens, (hidden_width(config),), dtypes)
    if name in (LAYER_HIDDEN[1], CHAINED_HIDDEN[1]):  # engines widen them before they sample
        rows = int((batch.new_lens > 0).sum()) * layers
        return OutputSpec(rows, (LOGITS,), (torch.float32,))
    return OutputSpec(tokens, (config.num_q_heads, config.v_head_dim), dtypes)


def _of_draft_model(
    name: str, seen: Observation, batch: Batch, config: EngineConfig
) -> OutputSpec | None:
    """What stands behind attention: of each drafted token, or of each row that caught up."""
    chain = (config.spec_steps + 1,)
    if name == "markov_tokens":
        return OutputSpec(batch.num_tokens, (), _TOKEN_IDS)
    if name in ("block_tokens", "markov_drafts"):
        return OutputSpec(batch.num_tokens - batch.raw_bs, (), _TOKEN_IDS)
    if name == "block_hidden":
        width = hidden_width(config)
        return OutputSpec(batch.num_tokens, (width,), (DTYPES[config.dtype],))
    if name in ("tree_tokens", "tree_scores_index"):
        return OutputSpec(batch.raw_bs, (config.draft_tokens - 1,), _TOKEN_IDS)
    if name == "tree_parents":
        columns = config.spec_topk * config.spec_steps + 1
        return OutputSpec(batch.raw_bs, (columns,), _TOKEN_IDS)
    if name in ("parent_list", "top_scores_index"):
        return OutputSpec(batch.raw_bs, chain, _TOKEN_IDS)
    if name == "drafted_parents":
        return OutputSpec(batch.raw_bs, (parents_of(config.spec_steps),), _TOKEN_IDS)
    if name == "drafted_scores":
        return OutputSpec(batch.raw_bs, (config.spec_steps,), _TOKEN_IDS)
    if name in ("first_tokens", "drawn_blocks"):
        return OutputSpec(batch.raw_bs, (), _TOKEN_IDS)
    drafts = _mode(batch, config) == "draft"
    rows = _token_rows(seen, batch, config) if drafts else int((batch.new_lens > 0).sum())
    width = hidden_width(config)
    if name == "unattended_hidden":
        return OutputSpec(_token_rows(seen, batch, config), (width,), (DTYPES[config.dtype],))
    if name == "chained_tokens":  # one layer for each draft token but the first
        return OutputSpec(rows, (config.draft_tokens - 1,), _TOKEN_IDS)
    if name == "topk_index":
        return OutputSpec(rows, (1,), _TOKEN_IDS)
    if name == "hidden_states":
        return OutputSpec(rows, (width,), (DTYPES[config.dtype],))
    if name == "next_token_logits":  # engines widen them before they sample
        return OutputSpec(rows, (LOGITS,), (torch.float32,))
    return None


def _token_rows(seen: Observation, batch: Batch, config: EngineConfig) -> int:
    """Rows of an output by token; a draft has a row for each of its steps."""
    tokens = seen.padded_tokens if seen.shown_tokens is None else seen.shown_tokens
    return tokens * (config.spec_steps if _mode(batch, config) == "draft" else 1)


def _mode(batch: Batch, config: EngineConfig) -> Mode:
    """An idle step runs on the graphs of the first mode."""
    return config.modes[0] if batch.mode == "idle" else batch.mode


def _share(seen: Observation, batch: Batch, config: EngineConfig) -> int:
    """Rows of this rank's part of the token axis."""
    # The padded axis is cut into parts, also in an eager run, whose axis is shorter: there the last
    # ranks may get fewer tokens, or none.
    shared = max(seen.padded_tokens, padded_tokens(batch, config) if batch.raw_bs else 0)
    first, end = shard(shared, config)
    return max(0, min(end, seen.padded_tokens) - first)
