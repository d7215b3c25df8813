"""The V1 runner with a model of recurrent layers: a request's blocks are its state slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.case.verified_states import states_each
from fuzzgraph.content import STATE_WIDTH
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.targets.vllm.admission import admission_steps, needs_admission
from fuzzgraph.targets.vllm.attention_model import OneLayer
from fuzzgraph.targets.vllm.mamba1_model import OneMamba1
from fuzzgraph.targets.vllm.recurrent_model import OneMixer
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.world import FIRST_ROW, RESERVED_SLOT, Batch, Ragged

_UTILS = "vllm.v1.attention.backends.utils"
_OF_ATTENTION = ("slot_mapping", "seq_lens", "block_table", "query_start_loc")


class RecurrentSession(RunnerSession):
    """One runner whose model is one recurrent layer."""

    model_class: type[OneLayer] = OneMixer
    model: Any
    output = "recurrent"
    """What the layer's output is called."""
    states_source = "vLLM mamba_attn.py _update_metadata_for_cudagraph_capture"

    def __init__(self, config: EngineConfig, graphs: GraphEngine, *backend: Any) -> None:
        super().__init__(config, graphs, *backend)
        self.model.load_known_weights()

    def _runner_fields(self) -> tuple[Field, ...]:
        return (*self._of_other_layers(super()._runner_fields()), *self._state_fields())

    def _of_other_layers(self, fields: tuple[Field, ...]) -> tuple[Field, ...]:
        """What of the runner's fields is not about attention."""
        return tuple(field for field in fields if field.name not in _OF_ATTENTION)

    def _state_fields(self) -> tuple[Field, ...]:
        """What the layer's kernels read."""
        return (
            Field("state_indices", "requests", "state", padded_state(), source=self.states_source),
        )

    def _runner_pools(self) -> Pools:
        conv, state = self._states()
        # A server hands out blocks as their last owner left them.
        return Pools(state=state.flatten(1), conv_state=conv, states_start_at_zero=False)

    def _states(self) -> Any:
        """Views of the runner's cache by state slot."""
        states = self.model.mixer.kv_cache
        # Older releases have a cache for each virtual engine.
        return states if isinstance(states[0], torch.Tensor) else states[0]

    def _blocks(self) -> int:
        return FIRST_ROW + self._config.req_pool_size * states_each(self._config)

    def _in_blocks(self, batch: Batch) -> Batch:
        """A request's blocks are its state slots: one, or one for each token of a verify."""
        each = states_each(self._config)
        offsets = np.arange(batch.raw_bs + 1) * each
        return replace(batch, pages=Ragged(batch.own_state_slots, offsets))

    def _step(self, batch: Batch) -> None:
        if needs_admission(self.served, batch):
            self._tell(admission_steps(self.served, self._in_blocks(batch)))
        super()._step(batch)

    def _metadata(self) -> dict[str, torch.Tensor]:
        return self._state_metadata()

    def _state_metadata(self) -> dict[str, torch.Tensor]:
        """Field of `_state_fields` -> the tensor, whole."""
        decodes, prefills = self._built.state_indices_tensor_d, self._built.state_indices_tensor_p
        parts = [] if decodes is None else [decodes[:, 0]]
        if self.ran_eagerly and prefills is not None:  # no graph holds kernels for these
            parts.append(prefills)
        return {"state_indices": parts[0] if len(parts) == 1 else torch.cat(parts)}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return () if mode == "idle" else (self.output,)

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        """All live tokens; those that the runner took logits of as it took them."""
        if self._hidden is None or self.model.shown is None:
            return {}
        return {self.output: self._with_logits_rows(self._hidden, self.model.shown)}

    def plan(self) -> dict[str, object]:
        """None: every sum is exact, in whatever order kernels sum."""
        return {}


class Mamba1Session(RecurrentSession):
    """One runner whose model is one Mamba1 layer, whose last columns of a state are not judged."""

    model_class = OneMamba1

    def _states(self) -> Any:
        conv, state = super()._states()
        return conv, state[:, :STATE_WIDTH]


def padded_state() -> PaddingRule:
    """Older releases pad with a sentinel, later ones with the null block."""
    if hasattr(engine_module(_UTILS), "NULL_BLOCK_ID"):
        return PaddingRule("reserved", RESERVED_SLOT)
    return PaddingRule("skip", -1)
