"""The V1 runner with a model of a recurrent layer and attention: a KV cache group for each.

Both groups take their blocks from one pool, in which a block holds a page of keys and values or a
state, and is one group's at a time. Here pages come first and states behind them; block 0 is the
null block of both. A request's blocks in the first group are its states, in the second its pages.
Sources: vLLM v1/core/kv_cache_planning.py (_get_kv_cache_groups_uniform_page_size),
platforms/interface.py (_align_hybrid_block_size), v1/worker/gpu_model_runner.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import Mode, attention_outputs
from fuzzgraph.errors import TargetFailed
from fuzzgraph.observation import Field
from fuzzgraph.ports import Pools
from fuzzgraph.targets.vllm.backend_metadata import read_by_kernels
from fuzzgraph.targets.vllm.beside_model import (
    DeltaNetBesideAttention,
    MixerBesideAttention,
    split_outputs,
)
from fuzzgraph.targets.vllm.gdn_session import DeltaNetSession
from fuzzgraph.targets.vllm.kv_cache import kv_planes
from fuzzgraph.targets.vllm.recurrent_session import RecurrentSession
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.world import FIRST_PAGE, Batch, Ragged

_ALIGN = "update_block_size_for_backend"
_RENAMED = {"query_start_loc": "recurrent_query_start_loc"}
"""Fields of the recurrent group that attention has too, and what they are shown as."""


class BesideAttentionSession(RecurrentSession):
    """One runner whose model has a recurrent layer and one of attention."""

    def _model_loaded(self) -> None:
        """Have pages and states share blocks (uniproc_executor.py, `_init_executor`); up to 0.17
        the configuration has done that already."""
        platform = engine_module("vllm.platforms").current_platform
        # It answers None for any name that it does not know.
        if hasattr(type(platform), _ALIGN):
            getattr(platform, _ALIGN)(self.vllm_config)

    @property
    def _pages(self) -> int:
        """Blocks that hold pages, the reserved and the trap ones included."""
        return FIRST_PAGE + self._config.kv_pool_pages

    def _blocks(self) -> int:
        return self._pages + super()._blocks()

    def _in_blocks(self, batch: Batch) -> Batch:
        states = super()._in_blocks(batch).pages
        behind = Ragged(states.values + self._pages, states.offsets)
        return replace(batch, pages=behind, more_groups=(batch,))

    # What there is

    def _of_other_layers(self, fields: tuple[Field, ...]) -> tuple[Field, ...]:
        return fields

    def _state_fields(self) -> tuple[Field, ...]:
        return tuple(map(self._behind_pages, super()._state_fields()))

    def _behind_pages(self, field: Field) -> Field:
        """The same field where states lie behind the pages of attention."""
        name = _RENAMED.get(field.name, field.name)
        if field.selects != "state":
            return replace(field, name=name)
        # Of a verify one slot for each token, else the only one.
        truth = field.repeats or "states_behind"
        return replace(field, name=name, repeats=f"{truth}:{self._pages}")

    def _runner_pools(self) -> Pools:
        self._demand_blocks()
        (cache,) = self._caches_of_attention()
        planes = tuple(plane[: self._pages] for plane in kv_planes(cache, self._config))
        return replace(super()._runner_pools(), kv_planes=planes, null_block=True)

    def _states(self) -> Any:
        """Behind the pages."""
        return [states[self._pages :] for states in super()._states()]

    def _demand_blocks(self) -> None:
        """
        Raises:
            TargetFailed: the engine has other groups, or other blocks, than this session serves.
        """
        groups = self.runner.kv_cache_config.kv_cache_groups
        kinds = [type(group.kv_cache_spec).__name__ for group in groups]
        tokens = self.vllm_config.cache_config.block_size
        if kinds != ["MambaSpec", "FullAttentionSpec"] or tokens != self._config.page_size:
            raise TargetFailed(
                f"vLLM has KV cache groups {kinds} with blocks of {tokens} tokens, where "
                f"page_size={self._config.page_size}: targets/vllm/beside_session.py does not know"
                " them. Add them there."
            )

    def _caches_of_attention(self) -> tuple[torch.Tensor, ...]:
        """Of each layer."""
        cache = self.model.attention.attend.kv_cache
        # Older releases have a cache for each virtual engine.
        return (cache if isinstance(cache, torch.Tensor) else cache[0],)

    # What was seen

    def _metadata(self) -> dict[str, torch.Tensor]:
        states = self._state_metadata().items()
        shown = {_RENAMED.get(name, name): tensor for name, tensor in states}
        return {**read_by_kernels(self._built_of[1]), **shown}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        names = (*attention_outputs(self._config), self.output)
        return () if mode == "idle" else names

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        joined = super().shown_outputs()
        if not joined:
            return {}
        recurrent, attended = split_outputs(joined[self.output], self._config)
        return {"attention": attended, self.output: recurrent}

    def plan(self) -> dict[str, object]:
        """Of attention."""
        return RunnerSession.plan(self)


class MixerBesideAttentionSession(BesideAttentionSession):
    """With a Mamba2 layer."""

    model_class = MixerBesideAttention


class DeltaNetBesideAttentionSession(BesideAttentionSession, DeltaNetSession):
    """With a gated-delta-net layer."""

    model_class = DeltaNetBesideAttention
