"""What tokens and their positions bring to a layer as q, k and v, one beside the other.

The key of a token is a unit vector, chosen by its position, so a state keeps the values of tokens
apart; in a delta rule one token in four has the key of the one before, whose value it replaces, by
its beta. A query is about the token and its position, and reads every channel.
"""

from __future__ import annotations

import torch

from fuzzgraph.content import STATE_WIDTH, Content
from fuzzgraph.recurrent_layers.linear_heads import LinearHeads
from fuzzgraph.recurrent_layers.short_convolution import LAST_FOUR, NEWEST
from fuzzgraph.world import VOCAB

_VALUE = 64.0
_NEXT_VALUE = 16.0
_FACTORS = 16
"""Largest multiple of what a token adds: values stay so large that SiLU leaves them as they are,
and half precision holds them. Columns behind those have other values to begin with."""
_QUERY_AT_POSITION = 8.0
REPLACES = 4
"""The last of so many positions has the key of the one before, where a rule replaces values."""


def values_of_tokens(content: Content, columns: int) -> torch.Tensor:
    """[VOCAB, columns] float32: a multiple of what the token adds to a state, another one or from
    another value on in each `STATE_WIDTH` columns."""
    added = content.weights["state_in"]
    times = columns // STATE_WIDTH
    parts = torch.arange(times).repeat_interleave(STATE_WIDTH)
    begin = _VALUE + _NEXT_VALUE * (parts // _FACTORS)
    return begin + added.repeat(1, times) * (1 + parts % _FACTORS)


def token_inputs(content: Content, keys: int, values: int) -> torch.Tensor:
    """[VOCAB, 2 * keys + values] float32: what a token brings."""
    gain = 1.0 + content.weights["conv_in"][:, -1:]
    nothing = torch.zeros(VOCAB, keys)
    return torch.cat((gain.expand(-1, keys), nothing, values_of_tokens(content, values)), dim=1)


def channels_of(places: torch.Tensor, channels: int) -> torch.Tensor:
    """[positions] the channel of each of these positions: each has its own until there are more
    positions than channels.

    Neighbours lie half of the channels apart. Kernels take channels in blocks, so two tokens are
    enough to have something in the first half of the blocks and in the second.

    Args:
        channels: a power of 2, at least 4: only then is the step from one position to the next odd.
    """
    return places * (channels // 2 + 1) % channels


def delta_keys(positions: int, channels: int) -> torch.Tensor:
    """[positions] channel of each position's key in a delta rule; they come again after as many
    positions as there are channels."""
    places = torch.arange(positions)
    return channels_of(places - (places % REPLACES == REPLACES - 1).long(), channels)


def position_inputs(
    channels: int, heads: int, values: int, key: float, keys: torch.Tensor
) -> torch.Tensor:
    """[positions, 2 * heads * channels + values] float32: what its position adds.

    Args:
        key: the number in each head of a key.
        keys: [positions] channel at which it stands.
    """
    own = torch.eye(channels)
    units = (own[channels_of(torch.arange(len(keys)), channels)], own[keys])
    query, at_key = (each.repeat(1, heads) for each in units)
    nothing = torch.zeros(len(keys), values)
    return torch.cat((_QUERY_AT_POSITION * query, key * at_key, nothing), dim=1)


def conv_weights(heads: LinearHeads) -> torch.Tensor:
    """[columns, CONV_WIDTH] float32, the newest token last.

    Queries weigh the last four tokens; keys and values stay as they are.
    """
    as_they_are = heads.columns - heads.key_columns
    return torch.tensor([*[LAST_FOUR] * heads.key_columns, *[NEWEST] * as_they_are])


def normed(read: torch.Tensor, epsilon: float) -> torch.Tensor:
    """What was read of a state, [n, heads, columns], over its root mean square, [n, the rest]."""
    scale = (read.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    found: torch.Tensor = (read * scale).flatten(1)
    return found
