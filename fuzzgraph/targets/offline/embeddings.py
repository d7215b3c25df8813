"""What a model of embeddings gives a layer of attention, for models of every engine."""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.demands import demand_lookup

__all__ = ["looked_up_qkv"]


def looked_up_qkv(
    embed: torch.Tensor,
    pos_embed: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    config: EngineConfig,
    where: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of the tokens: views of one packed sum, [tokens, columns] each.

    Args:
        embed, pos_embed: by token id and by position, packed as `content.Content` has them.
        where: the call of the engine, as messages name it.

    Raises:
        EngineError: a token id or a position lies outside of its table.
    """
    query = config.num_q_heads * config.head_dim
    keys = query + config.num_kv_heads * config.head_dim
    packed = demand_lookup(embed, input_ids, "input_ids", where)
    packed = packed + demand_lookup(pos_embed, positions, "positions", where)
    return packed[:, :query], packed[:, query:keys], packed[:, keys:]
