"""The V1 runner with a model of gated-delta-net layers: a request has one block, its state slot."""

from __future__ import annotations

import torch

from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import Pools
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.vllm.gdn_model import OneDeltaNet
from fuzzgraph.targets.vllm.recurrent_session import RecurrentSession

_STAGED = "vLLM gdn_attn.py build: what a full graph reads is copied into buffers of the builder"


class DeltaNetSession(RecurrentSession):
    """One runner whose model is one gated-delta-net layer."""

    model_class = OneDeltaNet
    model: OneDeltaNet
    output = "gated_delta"
    states_source = _STAGED

    def _runner_fields(self) -> tuple[Field, ...]:
        offsets = common.offsets(
            "query_start_loc",
            repeats="new_lens",
            padding=PaddingRule("fill", 0),
            dummy=PaddingRule("fill", 1),
            source=_STAGED,
        )
        return (*super()._runner_fields(), offsets)

    def _runner_pools(self) -> Pools:
        conv, state = self._states()
        return Pools(delta_state=state.flatten(1), delta_conv_state=conv, states_start_at_zero=False)

    def _metadata(self) -> dict[str, torch.Tensor]:
        built = self._built
        return {
            "state_indices": built.non_spec_state_indices_tensor,
            "query_start_loc": built.non_spec_query_start_loc,
        }
