"""Target `sglang-full-prefill-mla`: full prefill graphs of latent attention, with what is cached.

The release's own runner captures, beside each graph of tokens without a past, one for each of some
numbers of chunks of a past (`chunked_prefix:n`), and a replay takes the smallest that holds its
longest one. In such a graph the engine's model of Sarvam asks FlashAttention 3 for logsumexps, over
the new tokens and over each chunk, and merges the parts. Chunks are as long as the engine makes
them of a graph's largest count of tokens and its slots.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.prefix_parts import MOST_PARTS, graph_chunk
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.attention_model import FullPrefillModel
from fuzzgraph.targets.sglang.backends.attention_backend import refused_latent_row
from fuzzgraph.targets.sglang.backends.fa3 import FA3_MLA
from fuzzgraph.targets.sglang.excuses.prefill import LATENT_PREFILL_EXCUSES
from fuzzgraph.targets.sglang.expanded_latent_model import (
    EXPANDS,
    ExpandedPrefillModel,
    give_merges,
    on_cuda,
)
from fuzzgraph.targets.sglang.release import demand_release
from fuzzgraph.targets.sglang.runners.full_prefill import FullPrefillSession, FullPrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import FULL
from fuzzgraph.targets.sglang.stubs.platform import in_environment
from fuzzgraph.world import Batch

_SINCE = 0, 5, 17
"""sglang prefill_cuda_graph_runner.py `_capture_chunked_prefix`."""
_SETTINGS = MappingProxyType(
    {
        "SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD": "chunked_prefix_cache_threshold",
        "SGLANG_MAX_KV_CHUNK_CAPACITY": "max_kv_chunk_capacity",
    }
)
"""What a server reads from its environment (sglang environ.py), and the dimensions."""
_CAPACITIES = 1 << 17, 16, 8, 40
"""Tokens that are expanded at a time; the engine's default first."""
_TOO_LONG = "sglang PrefillCudaGraphRunner._has_uncapturable_chunked_prefix: graphs hold {} tokens"


def _refused_widths(*parts: int) -> str | None:
    """sglang mla_buffer.py get_mla_kv_buffer_kernel: a block of Triton for each part of a row."""
    odd = [width for width in parts if width & (width - 1)]
    return f"no block of Triton is {odd[0]} columns wide" if odd else None


class LatentPrefillTarget(FullPrefillTarget):
    """Full prefill graphs of latent attention on the sglang release that this process holds."""

    about = "full prefill graphs, latent rows on FlashAttention 3"
    excuses = LATENT_PREFILL_EXCUSES
    model_module = EXPANDS
    """Of the engine's model."""
    also_stood_in_for = (*FA3_MLA.stood_in_for, "projections but for that of keys and values")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.capabilities = self.capabilities.replace(
            modes=("prefill",),
            attentions=("mla",),
            min_rope_dim=2,
            max_dp_size=1,
            idle_alone=True,
            swa_window=False,
            virtual_pages=False,
            layer_types=False,
            images=False,
            kv_chunk_capacities=_CAPACITIES,
        )

    def refused(self, config: EngineConfig) -> str | None:
        return (
            super().refused(config)
            or refused_latent_row(config)
            or _refused_widths(config.v_head_dim, config.head_dim - config.v_head_dim)
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> LatentPrefillSession:
        return LatentPrefillSession(config, graphs, FULL)

    def modules(self) -> tuple[str, ...]:
        demand_release(_SINCE, "captures no chunks of a past", self.name)
        return (*super().modules(), self.model_module)

    def load(self) -> None:
        super().load()
        give_merges()


class LatentPrefillSession(FullPrefillSession):
    """An opened runner on FlashAttention 3, with one layer of latent attention."""

    arguments = MappingProxyType({})
    model: type[FullPrefillModel] = ExpandedPrefillModel
    on = FA3_MLA

    @contextlib.contextmanager
    def engine_runs(self) -> Iterator[None]:
        read = {name: str(getattr(self._config, field)) for name, field in _SETTINGS.items()}
        with in_environment(read, super().engine_runs()), on_cuda():
            yield

    def _rule_against(self, batch: Batch) -> str:
        most = MOST_PARTS * self._chunk
        if batch.cached_lens.max(initial=0) > most:
            return _TOO_LONG.format(most)
        return super()._rule_against(batch)

    @property
    def _chunk(self) -> int:
        return graph_chunk(self._config)

    def plan(self) -> dict[str, object]:
        """With the number of parts that are merged and their length: by them a row is summed."""
        past = max(self._last_batch.extend_prefix_lens_cpu, default=0)
        chunks = -(-past // self._chunk)
        if self.ran_eagerly:
            chunks = self._last_batch.num_prefix_chunks or 0
        long = self._last_batch.prefix_chunk_len if self.ran_eagerly else self._chunk
        return {**super().plan(), "prefix_chunks": (chunks, long if chunks else 0)}

    @property
    def roots(self) -> Mapping[str, object]:
        return {**super().roots, "prefix_chunks": self.runner.prefix_chunks}
