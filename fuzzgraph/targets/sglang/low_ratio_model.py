"""One layer of DeepSeek V4.1's attention with known weights, and the past that it finds.

A layer has a compressor and an indexer of its own, as the first of several that share its keys
(sglang configs/deepseek_v41.py, `kv_source_layer_ids`), or reads what that layer has written: its
keys, and its selection or the blocks that it leaves for an indexer of another layer
(`index_source_layer_ids`, `candidate_source_layer_id`). Then the layer before runs whole as well.
One table of rotations serves keys, the indexer's keys and its queries, and has columns for each: in
the place of a rotation models of kernels add them. A query of the indexer lacks what its rotation
adds, so that no other position than its own brings the query that `fp4_index` has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph import fp4_index
from fuzzgraph.case import EngineConfig
from fuzzgraph.compressor_layer import key_rows
from fuzzgraph.content import Content, content_for
from fuzzgraph.kernel_models.mxfp4 import fp4_pages, packed
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import Written, engine_layer
from fuzzgraph.targets.sglang.compressed_model import CompressedModel, Given, as_complex
from fuzzgraph.targets.sglang.stubs.compressed_pool import READING_LAYER, reads_layer_before
from fuzzgraph.world import VOCAB, IntArray

__all__ = ["ENGINE_MOST_TOPK", "LowRatioModel"]

ENGINE_MOST_TOPK = 1024
"""The larger of the numbers of keys that the backend lets an indexer select."""
_SECOND = -10_000.0
"""The score of a pair's second token, beside 0 of its first."""
_EPS = 1e-6


class LowRatioModel(CompressedModel):
    """A layer that keeps a key of each token, or of each two."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(config, device)
        content = content_for(config)
        positions = np.arange(content.max_positions)
        places = fp4_index.key_places(positions)
        self._token_keys = self._key_tokens()
        self._by_token = self._on_device(key_rows(content, np.arange(VOCAB)).float().numpy())
        self._queries = self._query_table(places, fp4_index.query_heads)
        table = torch.cat((self.pos_embed[:, self._keys].float(), self._on_device(places)), 1)
        self._rotations = as_complex(table)
        self._publishes = config.index_layer in ("source", "candidates")
        own = self._own_indexer(is_candidate_source=self._publishes)
        self.source = self._sources(0, compressor=self._own_compressor(), indexer=own)
        self.before: Any = None
        self.reader: Any = None
        self._reader_queries = self._queries
        if reads_layer_before(config):
            self.before = engine_layer(config, content, device, layer_id=0)
            self.layer.layer_id = READING_LAYER
        if config.index_layer == "candidates":
            self._reader_queries = self._query_table(places, fp4_index.candidate_heads)
            chooses = self._indexer_of(fp4_index.candidate_weights(), uses_candidates=True)
            self.reader = self._sources(READING_LAYER, compressor=None, indexer=chooses)

    def _sources(self, layer_id: int, **parts: Any) -> Any:
        """What of the engine's layer its backend asks for before it attends."""
        return Stub(
            layer_id=layer_id, compress_ratio=self._ratio, freqs_cis=self._rotations, **parts
        )

    def use(self, pool: Any, allocator: Any) -> None:
        """Bind the layer to the pool that keeps what it compresses."""
        self._pool = pool

    def _key_tokens(self) -> torch.Tensor:
        """[VOCAB, 128] the indexer's keys by their tokens, before their rotation."""
        by_token = fp4_index.key_tokens()
        return self._on_device(np.hstack((by_token, np.zeros_like(by_token))), torch.bfloat16)

    def _query_table(
        self, places: np.ndarray[Any, Any], heads: Callable[[IntArray, IntArray], Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[VOCAB, heads * 128] and [positions, heads * 128], whose sum is a query before its
        rotation.

        Args:
            heads: of `fp4_index`, of tokens at positions.
        """
        tokens, positions = np.arange(VOCAB), np.arange(len(places))
        by_token = heads(tokens, np.zeros_like(tokens))
        by_token[..., fp4_index.HALF :] = 0
        by_place = heads(np.zeros_like(positions), positions)
        by_place[..., : fp4_index.HALF] = 0
        by_place[..., fp4_index.HALF :] -= places[:, None]
        first, second = (
            self._on_device(each.reshape(len(each), -1), torch.bfloat16)
            for each in (by_token, by_place)
        )
        return first, second

    def _own_compressor(self) -> Any:
        """What the engine's `DeepseekV41Compressor` is to the backend, on a Blackwell GPU, whose
        projections are made before they come here."""
        width = self._config.head_dim
        weight = torch.ones(width, dtype=torch.bfloat16, device=self.embed.device)
        return Stub(
            compress_ratio=self._ratio,
            use_fused_compress=True,
            use_fused_gate=self._ratio > 1,
            wkv=lambda x: x,
            project_fused=lambda x: x.float(),
            norm=Stub(weight=weight, eps=_EPS),
        )

    def _own_indexer(self, *, is_candidate_source: bool) -> Any:
        """The engine's `DeepseekV41Indexer`, likewise, of a layer that owns its keys and selects
        among all of them."""
        width = 2 * fp4_index.HALF
        weight = torch.ones(width, dtype=torch.bfloat16, device=self.embed.device)
        return self._indexer_of(
            fp4_index.head_weights(),
            owns_k=True,
            is_candidate_source=is_candidate_source,
            k_norm=Stub(weight=weight, eps=_EPS),
            forward_wk=self._index_keys,
        )

    def _indexer_of(self, weights: npt.NDArray[Any], **parts: Any) -> Any:
        """One with heads of these weights, which neither owns keys nor knows of candidates."""
        held = self._on_device(weights[None], torch.bfloat16)
        others = {"owns_k": False, "is_candidate_source": False, "uses_candidates": False}
        return Stub(
            n_heads=len(weights),
            n_local_heads=len(weights),
            index_head_dim=2 * fp4_index.HALF,
            rope_head_dim=fp4_index.HALF,
            index_topk=self._config.index_topk or ENGINE_MOST_TOPK,
            wq_b=lambda q: (q, None),
            head_weights_raw=lambda x: held.expand(len(x), -1).contiguous(),
            head_weight_scale=1.0,
            **{**others, **parts},
        )

    def _index_keys(self, latent: torch.Tensor) -> torch.Tensor:
        """The indexer's keys of the tokens whose keys these are."""
        apart = (latent.float()[:, None] - self._by_token).abs().sum(2)
        return self._token_keys.index_select(0, apart.argmin(1))

    def _compress(self, given: Given) -> None:
        x = given.embedded[:, self._keys].to(torch.bfloat16)  # as V4.1's weights; keys are exact
        if self._ratio == 2:
            second = (given.positions % 2 * _SECOND).to(x.dtype)
            x = torch.cat((x, second[:, None].expand_as(x)), 1)
        self._run_sources(self.source, self._queries, x.contiguous(), given)

    def _run_sources(
        self, layer: Any, queries: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, given: Given
    ) -> None:
        by_token, by_place = queries
        tokens, places = given.input_ids, given.positions
        given.backend.forward_low_ratio_sources(
            layer=layer,
            x=x,
            q_lora=by_token.index_select(0, tokens) + by_place.index_select(0, places),
            positions=places,
            forward_batch=given.forward_batch,
        )

    def _read_before(self, attention: Callable[..., torch.Tensor], given: Given) -> None:
        if self.before is not None:
            attention(layer=self.before)
        if self.reader is not None:
            x = given.embedded[:, self._keys].to(torch.bfloat16).contiguous()
            self._run_sources(self.reader, self._reader_queries, x, given)
        elif self._publishes:
            _wait_for_candidates(given.backend)

    def _past_index(
        self, content: Content, slots: torch.Tensor, tokens: IntArray, positions: IntArray
    ) -> Iterator[Written]:
        by_token = fp4_index.key_tokens()[tokens]
        numbers, exponents = packed(np.hstack((by_token, fp4_index.key_places(positions))))
        size = self._pool.index_pools[self._ratio].page_size
        rows, scales = fp4_pages(self._pool.index, size)
        where = slots // size, slots % size
        yield rows, where, torch.from_numpy(numbers).to(rows.device)
        yield scales, where, torch.from_numpy(exponents).to(scales.device)


def _wait_for_candidates(backend: Any) -> None:
    """As the next layer's indexer does first, without which no model has one that leaves
    candidates: they are made on a stream of their own (sglang v41_indexer/sparse_table.py)."""
    published = getattr(backend.forward_metadata, "candidate_metadata", None)
    ready = getattr(published, "ready", None)
    if ready is not None:
        torch.cuda.current_stream().wait_event(ready)
