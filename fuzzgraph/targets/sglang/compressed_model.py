"""One layer of DeepSeek V4's attention with known weights, and the past that it finds.

As the engine's model does, it hands a token's projections to the compressors, lets the indexer
select among the compressed keys, and attends. Every weight is known: a group's key is that of its
first token, because that one alone has weight in the sum of states; positions are added where the
kernel rotates; `Content.key_scores` and `Content.index_weights` say what the indexer has to think
of each key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.compressor_layer import (
    compression_ratio,
    index_rows,
    kept_positions,
    key_rows,
    left_states,
    without_places,
)
from fuzzgraph.content import Content, content_for
from fuzzgraph.kernel_models.fp8 import pages_of_rows, quantised
from fuzzgraph.row_mixing import with_mixed
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import AttentionModel, Rope, Written
from fuzzgraph.targets.sglang.layer_streams import LayerStreams
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compressed_pool import state_places
from fuzzgraph.world import VOCAB, Batch, IntArray

_CONTEXT = "sglang.srt.model_executor.forward_context"
ENGINE_HEAD_DIM = 512
"""What the backend asserts, and takes the scale of its softmax from."""
ENGINE_TOPK = 512
"""Keys that an indexer selects where a model does not say."""
_NO_WEIGHT = -10_000.0
"""A score whose exponential is 0 in every dtype."""
_INDEXER = "sglang.srt.layers.attention.dsv4.indexer"
_INDEX_HEADS = 2
"""Of an indexer's query."""


def as_complex(positions: torch.Tensor) -> torch.Tensor:
    """A table of rotations whose numbers, two in one, are these."""
    return torch.view_as_complex(positions.unflatten(1, (-1, 2)).contiguous())


class Given(NamedTuple):
    """What the layer computes from in one forward."""

    backend: Any
    embedded: torch.Tensor
    """[tokens, columns] of tokens alone, without their positions."""
    input_ids: torch.Tensor
    positions: torch.Tensor
    forward_batch: Any


class CompressedModel(AttentionModel):
    """A layer whose past is compressed as the config says."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        rope: Rope = "apart",
        draft_layer: int = 0,
    ) -> None:
        super().__init__(config, device, rope, draft_layer)
        self._ratio = compression_ratio(config)
        query = config.num_q_heads * config.head_dim
        self._keys = slice(query, query + config.head_dim)
        # The backend's scale follows from 512 columns; queries make up for the case's few.
        self._query_scale = (ENGINE_HEAD_DIM / config.head_dim) ** 0.5
        # Without weight: the reference has none.
        self.sink = torch.full((config.num_q_heads,), -torch.inf, device=device)
        self.compressor: Any = None
        self.indexer: Any = None
        self._streams: LayerStreams | None = None
        """None for a layer that has none of its own."""
        self.index_tokens = self.index_queries = torch.empty(0)
        self.token_weights = self.place_weights = torch.empty(0)
        if self._ratio == 4:
            content = content_for(config)
            self.index_tokens = self._as_rows(content.index_keys[0])
            self.index_queries = self._query_heads(content.index_queries[0])
            self.token_weights, self.place_weights = self._head_weights(content.index_weights)

    def _as_rows(self, by_token: npt.NDArray[Any]) -> torch.Tensor:
        """What follows from tokens, in the model's dtype."""
        return self._on_device(without_places(by_token), self.embed.dtype)

    def _query_heads(self, by_token: npt.NDArray[Any]) -> torch.Tensor:
        """[VOCAB, heads * columns] queries before their rotation, which adds what a place prefers
        to both heads: the first one has what a token prefers, the second one nothing else."""
        # The largest column of either head, and so its scale, is the same always; no key has it.
        largest = np.where(np.arange(by_token.shape[1]) < VOCAB, 0, by_token)
        return torch.cat((self._as_rows(by_token), self._as_rows(largest)), 1)

    def _head_weights(
        self, signs: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[VOCAB, heads] and [positions, heads], whose sum is the weights of a query's heads.

        The first one's is the sign of tokens; both together are that of places, which both score.
        """
        by_token, by_place = signs
        of_tokens = np.stack((by_token, -by_token), axis=1)
        of_places = np.stack((np.zeros_like(by_place), by_place), axis=1)
        dtype = self.embed.dtype
        return self._on_device(of_tokens, dtype), self._on_device(of_places, dtype)

    def _on_device(
        self, table: npt.NDArray[Any], dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        found = torch.empty(table.shape, dtype=dtype, device=self.embed.device)
        return found.copy_(torch.from_numpy(table))

    def use(self, pool: Any, allocator: Any) -> None:
        """Bind the layer to the pool that keeps what it compresses."""
        self._pool = pool
        if self._ratio:
            self._bind(pool)
        kind: Any = engine_module(_INDEXER).C4Indexer
        self._streams = LayerStreams(self.indexer, self.compressor, kind)

    def _bind(self, pool: Any) -> None:
        positions = self.pos_embed[:, self._keys].float()
        width = self._config.head_dim
        self.compressor = self._compressor(slice(width), positions, pool.states)
        if self._ratio == 4:
            self.indexer = self._indexer(content_for(self._config), pool.index_states)

    def _compressor(self, columns: slice, positions: torch.Tensor, states: torch.Tensor) -> Any:
        """What the engine's `Compressor` is to the backend: one of these columns of its input."""
        width = columns.stop - (columns.start or 0)
        ape = torch.full((2 * self._ratio, width), _NO_WEIGHT, device=positions.device)
        if self._ratio == 128:
            ape = ape[:128].contiguous()
        ape[4 if self._ratio == 4 else 0] = 0.0  # the first token of a group
        return Stub(
            ratio=self._ratio,
            is_in_indexer=columns.start is not None,
            head_dim=width,
            rotate=columns.start is not None,
            ape=ape,
            norm=Stub(weight=torch.ones(width), variance_epsilon=0.0),
            freqs_cis=as_complex(positions),
            compute_kv_score=lambda x, *_: left_states(x[:, columns], self._ratio),
            get_state_pool=lambda *_: Stub(kv_score_buffer=Stub(kv_score=states)),
        )

    def _indexer(self, content: Content, states: torch.Tensor) -> Any:
        """The engine's `C4Indexer` with two heads, whose projections are known."""
        engine: Any = engine_module(_INDEXER).C4Indexer
        width = self.index_tokens.shape[1]
        own = self._config.head_dim
        keys = self._on_device(content.index_keys[1][np.arange(content.max_positions) // 4])
        indexer = Stub(
            layer_id=0,
            use_fp4_indexer=False,
            n_local_heads=_INDEX_HEADS,
            head_dim=width,
            index_topk=self._config.index_topk or ENGINE_TOPK,
            weight_scale=1.0,
            freqs_cis=as_complex(self._on_device(content.index_queries[1])),
            wq_b=lambda q: (q, None),
            weights_proj=lambda x: (x[:, -_INDEX_HEADS:].contiguous(), None),
            compressor=self._compressor(slice(own, own + width), keys, states),
        )
        for name in ("compute_q", "compute_weights"):
            setattr(indexer, name, functools.partial(getattr(engine, name), indexer))
        return indexer

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        config = self._config
        backend: Any = getattr(forward_batch, "attn_backend", None)
        if backend is None and has_module(_CONTEXT):
            backend = engine_module(_CONTEXT).get_attn_backend()
        embedded = self.embed.index_select(0, input_ids)
        packed = embedded + self.pos_embed.index_select(0, positions)
        q = packed[:, : self._keys.start] * self._query_scale
        k = packed[:, self._keys].contiguous()
        attention = functools.partial(
            self._attention_of(backend),
            q=q.view(-1, config.num_q_heads, config.head_dim).contiguous(),
            k=k,
            v=k,
            forward_batch=forward_batch,
            compress_ratio=self._ratio,
            attn_sink=self.sink,
        )
        given = Given(backend, embedded, input_ids, positions, forward_batch)
        if self._streams is not None and self._streams.used:
            self._prepare_on_streams(self._streams, given, k)
            attention = functools.partial(attention, save_kv_cache=False)
        else:
            self._compress(given)
        self._read_before(attention, given)
        out: torch.Tensor = attention(layer=self.layer)
        return with_mixed(out.flatten(1), config)

    def _attention_of(self, backend: Any) -> Callable[..., torch.Tensor]:
        """What attends; it takes what the backend's `forward` takes, by name."""
        attend: Callable[..., torch.Tensor] = backend.forward
        return attend

    def _read_before(self, attention: Callable[..., torch.Tensor], given: Given) -> None:
        """What comes between the layer that compresses and one that reads its keys.

        Args:
            attention: of a layer.
        """

    def _compress(self, given: Given) -> None:
        """What the engine's layer has indexer and compressor do before it attends."""
        x = self._compressed_of(given)
        if self._ratio == 4:
            call_with_known(
                given.backend.forward_c4_indexer,
                x=x,
                q_lora=self._indexed_of(given.input_ids),
                c4_indexer=self.indexer,
                forward_batch=given.forward_batch,
            )
        if self._ratio:
            given.backend.forward_core_compressor(x, given.forward_batch, 0, self.compressor)

    def _prepare_on_streams(self, streams: LayerStreams, given: Given, keys: torch.Tensor) -> None:
        """The same while graphs are captured, with the write of the window's keys beside it."""
        streams.prepare(
            self._compressed_of(given),
            given.positions,
            given.forward_batch,
            given.backend,
            q_lora=self._indexed_of(given.input_ids) if self._ratio == 4 else None,
            keys=keys,
        )

    def _compressed_of(self, given: Given) -> torch.Tensor:
        """[tokens, columns] the input of compressor and indexer."""
        x = given.embedded[:, self._keys].contiguous()
        if self._ratio != 4:
            return x
        weights = self.token_weights.index_select(0, given.input_ids)
        weights = weights + self.place_weights.index_select(0, given.positions)
        return torch.cat((x, self.index_tokens.index_select(0, given.input_ids), weights), 1)

    def _indexed_of(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[tokens, columns] the input of the indexer's query."""
        return self.index_queries.index_select(0, input_ids)

    # ---- the past

    def past(self, batch: Batch) -> Iterator[Written]:
        """The keys of whole groups, and the states that groups to come need."""
        if not self._ratio:
            return
        content = content_for(self._config)
        for row, cached in enumerate(batch.cached_lens.tolist()):
            slots, tokens = batch.kv_slots.row(row), batch.kv_tokens.row(row)
            firsts = np.arange(cached // self._ratio) * self._ratio
            keys = content.kv_planes(tokens[firsts], firsts)[0].flatten(1)
            at = torch.from_numpy(slots[firsts + self._ratio - 1] // self._ratio)
            yield self._pool.compressed, at, keys.to(self._pool.compressed.device)
            yield from self._past_index(content, at, tokens[firsts], firsts)
            if self._ratio == 1:
                continue
            positions = kept_positions(cached, self._ratio)
            request = np.full_like(positions, batch.req_pool_indices[row])
            places = state_places(self._pool, self._ratio, request, slots[positions], positions)
            at_places = torch.from_numpy(places)
            states = left_states(key_rows(content, tokens[positions]), self._ratio)
            yield self._pool.states, at_places, states
            if self._ratio == 4:
                states = left_states(index_rows(content, tokens[positions]), self._ratio)
                yield self._pool.index_states, at_places, states

    def _past_index(
        self, content: Content, slots: torch.Tensor, tokens: IntArray, positions: IntArray
    ) -> Iterator[Written]:
        """The indexer's keys of whole groups, of which `tokens` at `positions` are the first."""
        if self._ratio != 4:
            return
        by_token, by_place = content.index_keys
        keys, scale = quantised(np.hstack((by_token[tokens], by_place[: len(tokens)])))
        size = self._config.page_size // 4
        rows, scales = pages_of_rows(self._pool.index, size)
        where = slots // size, slots % size
        yield rows, where, keys.to(rows.device)
        yield scales, where, torch.from_numpy(scale).to(scales)
