"""Linear layers with LoRA adapters: known weights, and what the layers compute.

A layer gives `x W^T + s (x A^T) B^T` for each token, with the weights A and B and the scale s of
the adapter of the token's request, and `x W^T` for a request without one (Hu et al. 2021, "LoRA",
equation 3; Chen et al. 2023, "Punica", for several adapters in one batch). Three layers are known,
the ones that engines stack differently: queries, keys and values; gate and up; an output
projection. All get the same input, which follows from the token alone. Data-parallel ranks share
the columns of gate and up out, and each computes its own ones for the tokens of all of them.
Weights are multiples of 1/4 up to 1, so that all sums are exact in float32.

Some adapters have weights of the model's embedding as well, which is such a layer over one-hot rows
of token ids, and of its head, which gets what the others get.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.adapters import adapters_of_others
from fuzzgraph.data_ranks import tokens_of_ranks
from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB, Batch, IntArray

ADAPTED = "lora"
"""The output: columns of all layers, one layer after another."""
ADAPTED_OF_RANKS = "lora_of_ranks"
"""The output: on one of several data-parallel ranks its columns of the layers that all of them
share, for each token of all ranks, one rank behind another."""
ADAPTED_INPUT = 80
"""Columns of what the layers get, and of their widest parts: more than a block of columns of the
kernels that compute several parts at once, 64, and no whole number of blocks."""
HIGHEST_RANK = 32
_RANKS = (32, 4, 1, 8)
_SCALES = (2.0, 0.5, 4.0)


@dataclass(frozen=True, slots=True)
class Part:
    """One projection of a layer: that of queries, for example."""

    name: str
    columns: int


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer whose parts are computed at once."""

    name: str
    parts: tuple[Part, ...]

    @property
    def columns(self) -> int:
        return sum(part.columns for part in self.parts)


HEADS, KV_HEADS = 2, 1
HEAD_WIDTH = ADAPTED_INPUT // HEADS
"""Of the layer of queries, keys and values."""
LAYERS = (
    Layer(
        "qkv_proj",
        (
            Part("q_proj", HEADS * HEAD_WIDTH),
            Part("k_proj", KV_HEADS * HEAD_WIDTH),
            Part("v_proj", KV_HEADS * HEAD_WIDTH),
        ),
    ),
    Layer("gate_up_proj", (Part("gate_proj", ADAPTED_INPUT), Part("up_proj", ADAPTED_INPUT))),
    Layer("o_proj", (Part("o_proj", ADAPTED_INPUT),)),
)
"""By the names that models give them (transformers modeling_llama.py)."""
EMBEDDING, HEAD = (
    Layer("embed_tokens", (Part("embed_tokens", ADAPTED_INPUT),)),
    Layer("lm_head", (Part("lm_head", VOCAB),)),
)
"""Layers that some adapters have weights of, by the same names."""
_PARTS = tuple(part for layer in (*LAYERS, EMBEDDING, HEAD) for part in layer.parts)
SHARED = "gate_up_proj"
"""The layer whose columns data-parallel ranks share out."""


def layers_of(config: EngineConfig) -> tuple[Layer, ...]:
    """The layers that adapters of a case have weights of."""
    return (*LAYERS, *((EMBEDDING, HEAD) if config.adapted_embeddings else ()))


def own_layers(config: EngineConfig) -> tuple[Layer, ...]:
    """The layers that a rank computes for its own tokens."""
    every = layers_of(config)
    return tuple(layer for layer in every if config.dp_size == 1 or layer.name != SHARED)


def has_weights(adapter: int, part: Part) -> bool:
    """Whether an adapter changes a part. Of four, one changes embedding and head as well, one
    neither, and two one of them.

    >>> [[has_weights(number, *layer.parts) for layer in (EMBEDDING, HEAD)] for number in (1, 2, 3)]
    [[True, True], [False, False], [False, True]]
    """
    kinds = {EMBEDDING.parts[0]: (1, 0), HEAD.parts[0]: (1, 3)}
    return adapter > 0 and (part not in kinds or adapter % 4 in kinds[part])


def adapted_columns(config: EngineConfig) -> int:
    """Columns of `ADAPTED`."""
    return sum(layer.columns for layer in own_layers(config))


def shared_columns(config: EngineConfig) -> int:
    """Columns of `ADAPTED_OF_RANKS`."""
    (shared,) = (layer for layer in LAYERS if layer.name == SHARED)
    return shared.columns // config.dp_size


def share_of(part: Part, config: EngineConfig) -> slice:
    """The columns of a part of that layer that are this rank's."""
    each = part.columns // config.dp_size
    return slice(config.dp_rank * each, (config.dp_rank + 1) * each)


def rank_of(adapter: int) -> int:
    """Rank of an adapter; 0 for none.

    >>> [rank_of(adapter) for adapter in range(6)]
    [0, 32, 4, 1, 8, 32]
    """
    return _RANKS[(adapter - 1) % len(_RANKS)] if adapter else 0


def scale_of(adapter: int) -> float:
    """What an adapter's product is multiplied by."""
    return _SCALES[(adapter - 1) % len(_SCALES)]


def numbers(key: int, rows: int, columns: int) -> torch.Tensor:
    """[rows, columns] float32 multiples of 1/4 in [-1, 1]."""
    counters = np.arange(rows)[:, None] * (1 << 24) + np.arange(columns)
    bits = hash_counters(key, counters.astype(np.uint64)) >> np.uint64(40)
    return torch.from_numpy(((bits % np.uint64(9)).astype(np.float32) - 4.0) / 4.0)


def adapted_inputs() -> torch.Tensor:
    """[VOCAB, ADAPTED_INPUT] float32: what each token brings to the layers."""
    return numbers(9001, VOCAB, ADAPTED_INPUT)


def _key(adapter: int, part: Part) -> int:
    return 9100 + 100 * adapter + 2 * _PARTS.index(part)


def base_weight(part: Part) -> torch.Tensor:
    """[columns, ADAPTED_INPUT] float32: W; of the embedding [columns, VOCAB], what tokens bring to
    the layers."""
    if part in EMBEDDING.parts:
        return adapted_inputs().T
    return numbers(_key(0, part), part.columns, ADAPTED_INPUT)


def adapter_weights(adapter: int, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
    """(A [rank, ADAPTED_INPUT], B [columns, rank]) float32 of an adapter; of the embedding A is
    [rank, VOCAB]."""
    key, rank = _key(adapter, part), rank_of(adapter)
    width = VOCAB if part in EMBEDDING.parts else ADAPTED_INPUT
    return numbers(key, rank, width), numbers(key + 1, part.columns, rank)


@lru_cache(maxsize=1024)
def _by_token(adapter: int, part: Part, dtype: torch.dtype) -> torch.Tensor:
    """[VOCAB, columns] what a part of a layer gives for each token under an adapter."""
    x = (torch.eye(VOCAB) if part in EMBEDDING.parts else adapted_inputs()).to(dtype)
    out = x @ base_weight(part).to(dtype).T
    if has_weights(adapter, part):
        a, b = (weight.to(dtype) for weight in adapter_weights(adapter, part))
        out = out + scale_of(adapter) * ((x @ a.T) @ b.T)
    return out


def adapted_outputs(batch: Batch, config: EngineConfig, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, adapted_columns] in `dtype`: what the layers give for each new token."""
    parts = [part for layer in own_layers(config) for part in layer.parts]
    given = [_of_tokens(batch.input_ids, batch.token_adapters, part, dtype) for part in parts]
    return torch.cat(given, dim=1)


def rank_adapted_outputs(batch: Batch, config: EngineConfig, dtype: torch.dtype) -> torch.Tensor:
    """[tokens of all ranks, shared_columns] in `dtype`: this rank's columns of the shared layer."""
    tokens = np.concatenate(tokens_of_ranks(batch, config))
    adapters = np.concatenate(token_adapters_of_ranks(batch, config))
    (shared,) = (layer for layer in LAYERS if layer.name == SHARED)
    given = [
        _of_tokens(tokens, adapters, part, dtype)[:, share_of(part, config)]
        for part in shared.parts
    ]
    return torch.cat(given, dim=1)


def _of_tokens(
    tokens: IntArray, adapters: IntArray, part: Part, dtype: torch.dtype
) -> torch.Tensor:
    found = torch.zeros(len(tokens), part.columns, dtype=dtype)
    for adapter in np.unique(adapters).tolist():
        rows = torch.from_numpy(adapters == adapter)
        found[rows] = _by_token(adapter, part, dtype)[torch.from_numpy(tokens)[rows]]
    return found


def adapters_of_ranks(batch: Batch, config: EngineConfig) -> list[IntArray]:
    """int64 [rows] of each data-parallel rank, the batch's at its place."""
    found = []
    for rank, rows in enumerate(batch.rank_sizes.tolist()):
        others = adapters_of_others(config, batch.step, rank, rows)
        found.append(batch.adapters if rank == config.dp_rank else np.array(others, dtype=np.int64))
    return found


def token_adapters_of_ranks(batch: Batch, config: EngineConfig) -> list[IntArray]:
    """int64 [tokens] of each rank: a verify has a token for each draft of a row."""
    width = config.draft_tokens if "target_verify" in config.modes else 1
    return [np.repeat(adapters, width) for adapters in adapters_of_ranks(batch, config)]


def adapted_coarseness(dtype: torch.dtype) -> float:
    """How far the layers themselves may be from the truth, as a part of it: the kernels that run
    here cut off bits where they store bfloat16, between their two products and behind them."""
    return 2 * float(torch.finfo(dtype).eps) if dtype == torch.bfloat16 else 0.0
