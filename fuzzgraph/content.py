"""Computes what the tensors of a case hold: tokens, weights and the KV that follows from them.

Everything is a function of the engine config and of counters (seed, request, position), hashed
with splitmix64, so that two machines build the same bits from one case. The KV of a (token,
position) pair is known without running an engine. `layout` says which tokens a step holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph import nvfp4, pooled_blocks
from fuzzgraph.case import EngineConfig, attention_layers, group_configs
from fuzzgraph.splitmix import STRIDE, hash_counters
from fuzzgraph.world import VOCAB, Batch, IntArray

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "nvfp4": torch.uint8,
}
STATE_WIDTH = 8
"""Columns of a recurrent state row; float32, so that sums of `state_in` stay exact."""
STATE_SUMS = STATE_WIDTH // 2
"""Leading columns of a recurrent state that add up what its tokens bring. The others hold what the
last token brought, as where a state decays at once."""
TIME_STEP = 32.0
"""dt of every token of a recurrent layer; a power of two, and softplus leaves a number above 20 as
it is (vLLM mamba_ssm.py `softplus`)."""
INDEX_HALF = 64
"""Columns of an indexer's query or key that follow from its token; as many from its place."""
_COARSE, _FINE, _LONG = 32, 16, 16
_DIGITS = np.array([*range(17), *range(18, 33, 2), *range(36, 61, 4)], dtype=np.float64)
"""As many as `_COARSE`, each times a power of two a number of FP8, whose products are exact."""
_LEAST_INDEXED = _COARSE * _FINE
"""Places that have keys where a context is shorter: the first of `_LONG` parts."""
INDEXED_CONTEXT = _LEAST_INDEXED * _LONG - 64
"""Longest context all of whose places have keys, with room for what is drafted past its end."""
_LARGEST_INDEX = 28.0  # 448, the largest number of FP8, by a power of two, and above all others

_LAYER_KEYS = 100
"""Keys of the weights of one layer; all that are used are below."""
_POSITIONS = 3
"""Of them, the one of what positions bring."""

# Largest table of ready KV rows, in elements; longer contexts compute rows on demand.
_TABLE_LIMIT = 1 << 20

Overlay = Callable[[npt.NDArray[Any], npt.NDArray[Any], int], None]

Tokens = TypeVar("Tokens", torch.Tensor, IntArray)


def token_ids(seed: int, requests: IntArray, positions: IntArray) -> IntArray:
    """Token id in 0..VOCAB-1 of each (request, position); arrays of one shape, or broadcast."""
    counters = requests.astype(np.uint64) * np.uint64(STRIDE) + positions.astype(np.uint64)
    # The upper 24 bits: more than enough for the vocabulary, and never negative as int64.
    return (hash_counters(seed, counters) >> np.uint64(40)).astype(np.int64) % VOCAB


def next_token(token: Tokens, step: int | Tokens, branch: int | Tokens) -> Tokens:
    """The token a draft step predicts after `token` at `step` on `branch`."""
    # Depends on all three, so that a token taken from another step or branch shows.
    return (token * 5 + 7 * step + 3 * branch + 1) % VOCAB


def hidden_width(config: EngineConfig) -> int:
    """Columns of a draft model's hidden states, as `draft_head` lays them out."""
    return 2 * config.num_q_heads * config.v_head_dim + VOCAB


def hidden_rows(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rows of `Content.hidden_table` that these (token, position) pairs have."""
    return (5 * tokens + positions) % VOCAB


def _weights(key: int, rows: int, columns: int, bound: int) -> torch.Tensor:
    """[rows, columns] float32 multiples of 1/16 in [-bound/16, bound/16]."""
    # Multiples of 1/16 up to 2 have so few bits that sums of a few are exact in bfloat16 too. A
    # value depends on its own row and column only (rows are 2^24 counters apart), so that a
    # smaller config has a corner of a larger one's weights.
    counters = np.arange(rows)[:, None] * (1 << 24) + np.arange(columns)
    bits = hash_counters(key, counters.astype(np.uint64)) >> np.uint64(40)
    units = (bits % np.uint64(2 * bound + 1)).astype(np.int64) - bound
    return torch.from_numpy(units.astype(np.float32) / 16.0)


def _order(key: int, rows: int, columns: int) -> IntArray:
    """[rows, columns] the numbers below `columns` in each row, in an order of its own."""
    counters = np.arange(rows)[:, None] * (1 << 24) + np.arange(columns)
    return hash_counters(key, counters.astype(np.uint64)).argsort(axis=1, kind="stable")


def _signs(key: int, count: int) -> npt.NDArray[np.float64]:
    """[count] 1 or -1."""
    bits = hash_counters(key, np.arange(count, dtype=np.uint64)) >> np.uint64(40)
    return np.where(bits & np.uint64(1), 1.0, -1.0)


@dataclass(frozen=True)
class _Units:
    """Bounds of embeddings, in 1/16, and what all are multiplied with. In NVFP4 keys have those of
    values."""

    query_and_key: int
    value: int
    mrope: int
    times: tuple[float, float]
    """Of queries and keys, and of values."""


# Small queries and keys keep the softmax from saturating: each key then has a weight that shows.
# Query and key columns are within 1, those of a value within 2.
_WIDE = _Units(query_and_key=16, value=32, mrope=16, times=(1.0, 1.0))
# Sums of a token's, a position's and an image's embedding are at most 16 units, which FP8 holds as
# they are: whether an engine attends to a token before or after it is stored makes no difference.
_FP8 = _Units(query_and_key=5, value=8, mrope=6, times=(2.0, 4.0))


# A block's first column, which is a token's alone, holds the largest magnitude of one of two
# scales. All others are at most 4 units, sums of a token's and a position's, which both scales
# hold. Queries are those beside FP8, which is what kernels take them in.
_FP4 = _Units(query_and_key=_FP8.query_and_key, value=2, mrope=_FP8.mrope, times=(2.0, 4.0))
_FP4_LARGEST = (6, 12)
_QUERY_OF_FP4 = 20
"""Beyond the key of a layer's projection: keys of what only content in NVFP4 has."""


def _units(config: EngineConfig) -> _Units:
    if config.kv_dtype == "nvfp4":
        return _FP4
    return _WIDE if config.kv_dtype == "auto" else _FP8


def _projection(key: int, rows: int, config: EngineConfig) -> torch.Tensor:
    """Embeddings of packed queries, keys and values, in the units of the config's KV."""
    if config.kv_dtype == "nvfp4":
        return _fp4_projection(key, rows, config)
    query_and_key = (config.num_q_heads + config.num_kv_heads) * config.head_dim
    values = config.num_kv_heads * config.v_head_dim
    units = _units(config)
    return torch.cat(
        [
            _weights(key, rows, query_and_key, units.query_and_key) * units.times[0],
            _weights(key + 1, rows, values, units.value) * units.times[1],
        ],
        dim=1,
    )


def _fp4_projection(key: int, rows: int, config: EngineConfig) -> torch.Tensor:
    """The same for KV in NVFP4.

    Args:
        key: of the layer's projection; that of positions leaves the first columns of blocks empty.
    """
    queries, keys = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    stored = keys + config.num_kv_heads * config.v_head_dim
    query = _weights(key + _QUERY_OF_FP4, rows, queries, _FP4.query_and_key) * _FP4.times[0]
    columns = _weights(key, rows, stored, _FP4.value) * _FP4.times[1]
    blocks = columns.view(rows, -1, nvfp4.BLOCK)
    blocks[..., 0] = 0.0
    if key % _LAYER_KEYS != _POSITIONS:
        drawn = _weights(key + _QUERY_OF_FP4 + 1, rows, blocks.shape[1], 32) * 16.0
        smaller, larger = (units * _FP4.times[1] / 16.0 for units in _FP4_LARGEST)
        largest = torch.where(drawn % 2 == 0, smaller, larger)
        blocks[..., 0] = torch.where(drawn < 0, -largest, largest)
    return torch.cat((query, columns), dim=1)


@dataclass(frozen=True, eq=False)
class Content:
    """Weights of the model that a config runs, on the host, and the KV that they imply.

    Each attention layer has embeddings of its own, and so has each recurrent one; what is not of a
    layer is that of layer 0.
    """

    config: EngineConfig
    layer: int = 0

    def build(self) -> Content:
        """Compute every table now, before an engine opens."""
        # Tables outlive sessions. Computed under a session's guard, they would lie in its memory.
        _ = self.weights, self.encoder_table, self.has_table and self.plane_table
        _ = self.hidden_table
        return self

    @cached_property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.config.dtype]

    @cached_property
    def storage_dtype(self) -> torch.dtype:
        """Dtype of the KV pool."""
        return self.dtype if self.config.kv_dtype == "auto" else DTYPES[self.config.kv_dtype]

    @cached_property
    def k_scale(self) -> float:
        """Stored keys times this are keys."""
        # A power of two, so that scaled numbers of FP8 are numbers of FP8.
        return 1.0 if self.config.kv_dtype == "auto" or self.config.unit_kv_scale else 0.5

    @cached_property
    def v_scale(self) -> float:
        """Stored values times this are values."""
        # Not `k_scale`, so that an engine that swaps the two is found out. Latent rows are key and
        # value at once and have one scale.
        if self.k_scale == 1.0 or self.config.attention == "mla":
            return self.k_scale
        return 0.25

    @cached_property
    def max_positions(self) -> int:
        """Rows of `pos_embed`: the context, and room for drafts past its end."""
        config = self.config
        return config.max_context_len + config.spec_steps + config.draft_tokens + 8

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """Model weights in the config's dtype, by name.

        embed [VOCAB, Hq*D + Hkv*D + Hkv*Dv] and pos_embed [max_positions, same]: their sum is the
        packed q, k, v of a token (k's first Dv columns serve as v in `mla`). mrope_embed
        [VOCAB, Hq*D] is added to q where a batch brings that input. encoder_embed: [VOCAB, Hkv*D +
        Hkv*Dv], packed k, v of an encoder token. state_in [VOCAB, STATE_WIDTH], float32, is
        added to a request's state by each of its tokens. state_keep [STATE_WIDTH], float32: by what
        a token multiplies the state before it, 1 or 0. conv_in [VOCAB, STATE_WIDTH + 2],
        float32, is what a token brings to a recurrent layer, see `recurrent_layers.mamba2`.
        """
        config, key = self.config, _LAYER_KEYS * self.layer
        query, units = config.num_q_heads * config.head_dim, _units(config)
        exact = {
            "embed": _projection(key + 1, VOCAB, config),
            "pos_embed": _projection(key + _POSITIONS, self.max_positions, config),
            "mrope_embed": _weights(key + 5, VOCAB, query, units.mrope) * units.times[0],
            "encoder_embed": _projection(key + 6, VOCAB, config)[:, query:],
        }
        if config.pooled_block:
            self._tell_blocks_apart(exact["embed"], pooled_blocks.overlay_tokens)
            self._tell_blocks_apart(exact["pos_embed"], pooled_blocks.overlay_places)
        typed = {name: weight.to(self.dtype).contiguous() for name, weight in exact.items()}
        state_in = self.state_inputs(STATE_WIDTH)
        unit = torch.full((VOCAB, 1), 1 / TIME_STEP)
        conv_in = torch.cat((state_in, unit, self.readout_inputs(1)), dim=1)
        keep = (torch.arange(STATE_WIDTH) < STATE_SUMS).float()
        return {**typed, "state_in": state_in, "state_keep": keep, "conv_in": conv_in}

    def state_inputs(self, columns: int) -> torch.Tensor:
        """[VOCAB, columns] float32: what a token adds to so many columns of a state."""
        return _weights(_LAYER_KEYS * self.layer + 8, VOCAB, columns, 32)

    def readout_inputs(self, columns: int) -> torch.Tensor:
        """[VOCAB, columns] float32: how a token weighs so many columns that it reads."""
        return _weights(_LAYER_KEYS * self.layer + 15, VOCAB, columns, 8)

    def _tell_blocks_apart(self, packed: torch.Tensor, overlay: Overlay) -> None:
        """Put what selects blocks by pooled keys into rows of packed queries, keys and values."""
        config, width = self.config, self.config.head_dim
        rows, heads = packed.numpy(), config.num_kv_heads
        queries, keys = config.num_q_heads * width, heads * width
        overlay(
            rows[:, :queries].reshape(len(rows), heads, -1, width),
            rows[:, queries : queries + keys].reshape(len(rows), heads, width),
            config.pooled_block,
        )

    @cached_property
    def hidden_table(self) -> torch.Tensor:
        """[VOCAB, hidden_width] in the config's dtype: every row that `hidden_states` can give."""
        return _weights(11, VOCAB, hidden_width(self.config), 32).to(self.dtype)

    def hidden_states(
        self, tokens: torch.Tensor | IntArray, positions: torch.Tensor | IntArray
    ) -> torch.Tensor:
        """[N, hidden_width] what the target model hands its draft model for these tokens."""
        return self.hidden_table[hidden_rows(torch.as_tensor(tokens), torch.as_tensor(positions))]

    def embed_qkv(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        mrope: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, Dv]) in the config's dtype, exact."""
        weights, config = self.weights, self.config
        packed = weights["embed"][input_ids] + weights["pos_embed"][positions]
        query = config.num_q_heads * config.head_dim
        q = packed[:, :query]
        if mrope is not None:
            q = q + weights["mrope_embed"][mrope]
        k, v = self._split(packed[:, query:])
        return q.reshape(-1, config.num_q_heads, config.head_dim), k, v

    @cached_property
    def plane_shapes(self) -> tuple[tuple[int, int], ...]:
        """(heads, columns) of one slot in each plane of the pool: (k, v), or the latent alone. In
        NVFP4 the planes of their scales follow."""
        config = self.config
        key = (config.num_kv_heads, config.head_dim)
        if config.kv_dtype == "nvfp4":
            heads, widths = config.num_kv_heads, (config.head_dim, config.v_head_dim)
            packed = [(heads, width // 2) for width in widths]
            return *packed, *((heads, width // nvfp4.BLOCK) for width in widths)
        return (key,) if config.attention == "mla" else (key, (key[0], config.v_head_dim))

    def kv_planes(
        self, tokens: torch.Tensor | IntArray, positions: torch.Tensor | IntArray
    ) -> tuple[torch.Tensor, ...]:
        """KV that the pool must hold for these tokens: each [N, heads, columns], storage dtype."""
        if self.has_table:
            index = self.plane_index(tokens, positions)
            return tuple(_rows(table, index) for table in self.plane_table)
        return self._planes(torch.as_tensor(tokens), torch.as_tensor(positions))

    @cached_property
    def has_table(self) -> bool:
        """Whether `plane_table` exists: a short enough context."""
        width = self.plane_shapes[0][0] * max(columns for _, columns in self.plane_shapes)
        return VOCAB * self.max_positions * width <= _TABLE_LIMIT

    def plane_index(
        self, tokens: torch.Tensor | IntArray, positions: torch.Tensor | IntArray
    ) -> torch.Tensor:
        """Rows of `plane_table` that hold these (token, position) pairs."""
        return torch.as_tensor(tokens * self.max_positions + positions)

    @cached_property
    def plane_table(self) -> tuple[torch.Tensor, ...]:
        """Each [VOCAB * max_positions, heads, columns]: every row that `kv_planes` can give."""
        tokens = torch.arange(VOCAB).repeat_interleave(self.max_positions)
        return self._planes(tokens, torch.arange(self.max_positions).repeat(VOCAB))

    @cached_property
    def index_queries(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """([VOCAB, 64] by token, [max_positions, 64] by position): an indexer's query, whose score
        for a key is the sum of the products of the halves.

        A token's half says which tokens' keys it prefers, a position's half puts all places in an
        order. The largest column is the same everywhere: then quantising to FP8 by the largest is
        exact. Half of the tokens are preferred, or two where blocks are as good as their best key:
        of these nearly all would have one else, and no token would decide.
        """
        by_token = np.zeros((VOCAB, INDEX_HALF))
        order = _order(12, VOCAB, VOCAB)
        preferred = order < 2 if self.config.index_block else order % 2
        by_token[:, :VOCAB] = _LARGEST_INDEX * preferred
        by_token[:, VOCAB] = _LARGEST_INDEX
        by_place = np.zeros((self.max_positions, INDEX_HALF))
        by_place[:, :_COARSE] = _DIGITS[_order(13, self.max_positions, _COARSE)] / 4
        fine = _COARSE + _FINE
        by_place[:, _COARSE:fine] = _order(14, self.max_positions, _FINE) / 64
        by_place[:, fine : fine + _LONG] = _order(15, self.max_positions, _LONG) / 1024
        return by_token, by_place

    @cached_property
    def index_keys(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """([VOCAB, 64] by token, [places, 64] by place among a row's keys): an indexer's key.

        There are as many places as positions, 512 at least and 8192 at most.
        """
        by_token = np.eye(VOCAB, INDEX_HALF)
        count = min(max(_LEAST_INDEXED, self.max_positions), _LEAST_INDEXED * _LONG)
        places = np.arange(count)
        by_place = np.zeros((count, INDEX_HALF))
        by_place[places, places // _FINE % _COARSE] = 1
        by_place[places, _COARSE + places % _FINE] = 1
        by_place[places, _COARSE + _FINE + places // _LEAST_INDEXED] = 1
        return by_token, by_place

    @cached_property
    def index_weights(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """([VOCAB] by token, [max_positions] by position): 1 or -1, by which an indexer with a head
        for each half of its queries multiplies the scores of the halves.

        Either way no two keys of a query are equal, and what is best differs with each of the two.
        """
        return _signs(16, VOCAB), _signs(17, self.max_positions)

    @cached_property
    def key_scores(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """([VOCAB, VOCAB] tokens of query and key, [max_positions, places] position and place):
        their sum is what an indexer thinks of a key; no two keys of a query are equal.
        """
        pairs = zip(self.index_queries, self.index_keys, strict=True)
        by_token, by_place = (queries @ keys.T for queries, keys in pairs)
        return by_token, by_place

    def encoder_planes(self, tokens: torch.Tensor | IntArray) -> tuple[torch.Tensor, ...]:
        """KV that the pool must hold for encoder tokens; like `kv_planes`, without positions."""
        return tuple(_rows(table, torch.as_tensor(tokens)) for table in self.encoder_table)

    @cached_property
    def encoder_table(self) -> tuple[torch.Tensor, ...]:
        """Each [VOCAB, heads, columns]: every row that `encoder_planes` can give."""
        return self._stored(self.weights["encoder_embed"])

    def state_rows(self, batch: Batch, *, after: bool = False) -> torch.Tensor:
        """float32 [raw_bs, STATE_WIDTH]: the recurrent states before (or `after`) this step.

        The first `STATE_SUMS` columns are sums of `state_in` over the tokens seen: they start at
        zero, are exact and show a token that is missing or counted twice. The others are those of
        the last token, and show a state that does not decay.
        """
        lens = batch.seq_lens if after else batch.cached_lens
        return self.states_at(batch, np.arange(batch.raw_bs), lens)

    def states_at(self, batch: Batch, rows: IntArray, lens: IntArray) -> torch.Tensor:
        """float32 [n, STATE_WIDTH]: the state of row `rows[i]` behind `lens[i]` tokens."""
        starts = batch.kv_tokens.offsets[rows]
        stops = starts + lens
        seen = self.weights["state_in"][torch.from_numpy(batch.kv_tokens.values)]
        # Differences of one prefix sum over all rows: exact, because every sum is.
        sums = torch.nn.functional.pad(seen.cumsum(0), (0, 0, 1, 0))
        states = sums[torch.from_numpy(stops)] - sums[torch.from_numpy(starts)]
        last = sums[torch.from_numpy(stops)] - sums[torch.from_numpy(np.maximum(stops - 1, starts))]
        states[:, STATE_SUMS:] = last[:, STATE_SUMS:]
        return states

    def _planes(self, tokens: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query = self.config.num_q_heads * self.config.head_dim
        weights = self.weights
        return self._stored((weights["embed"][tokens] + weights["pos_embed"][positions])[:, query:])

    def _split(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        config = self.config
        keys = config.num_kv_heads * config.head_dim
        k = packed[:, :keys].reshape(-1, config.num_kv_heads, config.head_dim)
        if config.attention == "mla":
            return k, k[..., : config.v_head_dim]
        return k, packed[:, keys:].reshape(-1, config.num_kv_heads, config.v_head_dim)

    def numbers(
        self, planes: tuple[torch.Tensor, ...], dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(keys, values), each [N, heads, columns], that rows of `kv_planes` stand for."""
        found = list(planes)
        if self.config.kv_dtype == "nvfp4":
            k, v, *scales = planes
            found = [nvfp4.decoded(*pair) for pair in zip((k, v), scales, strict=True)]
        of_all = (self.k_scale, self.v_scale)
        found = [plane.to(dtype) * scale for plane, scale in zip(found, of_all, strict=False)]
        if len(found) == 1:  # latent attention stores one row per token
            found.append(found[0][..., : self.config.v_head_dim].contiguous())
        return found[0], found[1]

    def _stored(self, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        k, v = self._split(packed)
        if self.config.kv_dtype == "nvfp4":
            stored = nvfp4.encoded(k / self.k_scale), nvfp4.encoded(v / self.v_scale)
            return tuple(each.contiguous() for pair in zip(*stored, strict=True) for each in pair)
        planes = ((k, self.k_scale), (v, self.v_scale))[: len(self.plane_shapes)]
        return tuple((plane / scale).to(self.storage_dtype).contiguous() for plane, scale in planes)


@lru_cache(maxsize=64)
def _shared(key: EngineConfig, layer: int) -> Content:
    return Content(key, layer)


@lru_cache(maxsize=256)
def content_for(config: EngineConfig, layer: int = 0) -> Content:
    """The content of `config` and one attention layer; configs of one shape, dtype and length
    share it. Layers stand in the order of `case.attention_layers`."""
    # Only the fields that decide it, all others at their defaults.
    plain = EngineConfig(
        max_context_len=config.max_context_len,
        num_q_heads=config.num_q_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        v_head_dim=config.v_head_dim,
        attention=config.attention,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        unit_kv_scale=config.unit_kv_scale,
        spec_steps=config.spec_steps,
        draft_tokens=config.draft_tokens,
        index_block=config.index_block,
        layer_types=config.layer_types,
        state_ring_len=min(config.state_ring_len, 1),  # whether there is one
        safe_gate=config.safe_gate,
        linear_head_dim=config.linear_head_dim,
        pooled_block=config.pooled_block,
    )
    return _shared(plain, layer)


def attention_contents(config: EngineConfig) -> tuple[Content, ...]:
    """Weights, keys and values of each layer that attends, in the order of `case.attention_layers`;
    of a draft model with several layers, of the first."""
    groups = group_configs(config)
    layers = enumerate(attention_layers(config))
    return tuple(content_for(groups[layer.group], number) for number, layer in layers)


def _rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of a table; as bytes where they are fp8, which torch 2.6 cannot index on a CPU."""
    if table.element_size() > 1:
        return table[index]
    return table.view(torch.uint8)[index].view(table.dtype)
