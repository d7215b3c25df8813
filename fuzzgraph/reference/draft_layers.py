"""The layers of a draft model that has one for each drafted token, from the logical batch alone.

All stand at the same positions. At each of them a layer takes the token behind the one that the
layer before it takes; behind a row's last token come those that the layers predict. Each has keys
and values of its own. A layer is given the hidden states of the target model, or those of the layer
before it. Sources: sglang MultiLayerEagleDraftWorker._draft_extend_for_decode, and
multi_layer_eagle_utils.py rotate_input_ids, up to 0.5.14 assign_new_state; the worker's
chain_mtp_hidden_states says which models hand hidden states on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from fuzzgraph.case import EngineConfig, attention_layers, attention_outputs, group_configs
from fuzzgraph.content import Content, attention_contents, content_for, next_token
from fuzzgraph.draft_head import head_weight, next_hidden
from fuzzgraph.reference.attention import attended_layers
from fuzzgraph.world import Batch, IntArray, Ragged

LAYER_ATTENTION = "layer_attention"
"""Output of the first attention of all draft layers; that of the second is `of_layers` of it."""
LAYER_HIDDEN = ("layer_hidden", "layer_logits")
"""Outputs of draft layers that are given the target model's hidden states."""
CHAINED_HIDDEN = ("chained_hidden", "chained_logits")
"""The same of draft layers that are given those of the layer before."""


def draft_layers(config: EngineConfig) -> int:
    """How many there are: one for each token of a draft, of which the first is known."""
    return config.draft_tokens - 1


def of_layers(attention: str) -> str:
    """The output of all draft layers that `attention` is the output of one of.

    >>> of_layers("swa_attention")
    'layer_swa_attention'
    """
    return f"layer_{attention}"


def layer_content(config: EngineConfig, layer: int, group: int = 0) -> Content:
    """Weights, keys and values of a draft layer's attention, in one KV cache group."""
    groups = group_configs(config)
    return content_for(groups[group], layer * len(groups) + group)


def content_of_layer(config: EngineConfig, number: int, draft_layer: int = 0) -> Content:
    """The same of a model's layers, by their numbers in `case.attention_layers`."""
    if draft_layer:
        return layer_content(config, draft_layer, attention_layers(config)[number].group)
    return attention_contents(config)[number]


@lru_cache(maxsize=8)
def layer_batch(batch: Batch, layer: int) -> Batch:
    """The step as a draft layer sees it: with the tokens that it takes at the same positions.

    What it finds of the past was computed with the tokens that stayed.
    """
    if not layer:
        return batch
    rows = [
        _moved_on(batch.kv_tokens.row(row), int(accepted), layer)
        for row, accepted in enumerate(batch.new_lens)
    ]
    values = np.concatenate(rows) if rows else batch.kv_tokens.values
    offsets = batch.kv_tokens.offsets
    new = np.arange(len(values)) >= np.repeat(offsets[:-1] + batch.cached_lens, np.diff(offsets))
    moved, taken = Ragged(values, offsets), values[new]
    groups = tuple(replace(group, kv_tokens=moved, input_ids=taken) for group in batch.more_groups)
    return replace(batch, kv_tokens=moved, input_ids=taken, more_groups=groups)


def _moved_on(tokens: IntArray, accepted: int, layer: int) -> IntArray:
    """A row's tokens from a later one on. Token 0 comes behind one that accepted none, which no
    server has."""
    behind = tokens if accepted else np.append(tokens, 0)
    while len(behind) < len(tokens) + layer:
        behind = np.append(behind, next_token(behind[-1:], 0, 0))
    return behind[layer : len(tokens) + layer]


def layer_outputs(
    batch: Batch, config: EngineConfig, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], float]:
    """(outputs of all draft layers by token or row, then layer; the largest |V| that entered any).

    Hidden states are those of accepted tokens; logits of the last one of each row that has one.
    """
    given = content_for(config).hidden_states(batch.input_ids, batch.positions)
    handed_on = given
    last = torch.from_numpy(batch.new_lens.cumsum()[batch.new_lens > 0] - 1)
    weight = head_weight(config, dtype).T
    found: dict[str, list[torch.Tensor]] = {}
    bound = 0.0
    for layer in range(draft_layers(config)):
        seen = layer_batch(batch, layer)
        attended, entered = attended_layers(seen, config, dtype, layer)
        bound = max(bound, entered)
        predicted = next_token(torch.from_numpy(seen.input_ids), 0, 0)
        columns = attended["attention"].flatten(1)
        hidden = next_hidden(columns, given, predicted)
        handed_on = next_hidden(columns, handed_on, predicted)
        outputs = {of_layers(name): attended[name] for name in attention_outputs(config)}
        for names, states in ((LAYER_HIDDEN, hidden), (CHAINED_HIDDEN, handed_on)):
            outputs |= dict(zip(names, (states, states[last] @ weight), strict=True))
        for name, value in outputs.items():
            found.setdefault(name, []).append(value)
    return {name: torch.stack(each, 1).flatten(0, 1) for name, each in found.items()}, bound
