"""The V1 runner with a model of gated-delta-net layers, for decodes and for verifies of drafts."""

from __future__ import annotations

from types import MappingProxyType

import torch

from fuzzgraph.case import Mode
from fuzzgraph.case.verified_states import states_each
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import Pools
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.vllm.gdn_model import OneDeltaNet
from fuzzgraph.targets.vllm.recurrent_session import RecurrentSession, padded_state

_STAGED = "vLLM gdn_attn.py build: what a full graph reads is copied into buffers of the builder"
_DRAFT_STATES = "spec_state_indices"
_OF_DUMMIES: tuple[tuple[Mode, PaddingRule], ...] = (("idle", common.FREE),)
"""Dummy rows have no states. Up to 0.25 the builder stages nothing for them where the last batch
had no drafts, and the graph reads what was there."""


class DeltaNetSession(RecurrentSession):
    """One runner whose model is one gated-delta-net layer."""

    model_class = OneDeltaNet
    additional_config = MappingProxyType({"gdn_prefill_backend": "triton"})
    output = "gated_delta"
    states_source = _STAGED

    def _state_fields(self) -> tuple[Field, ...]:
        offsets = common.offsets(
            "query_start_loc",
            repeats="new_lens",
            padding=PaddingRule("fill", 0),
            dummy=PaddingRule("fill", states_each(self._config)),
            in_modes=_OF_DUMMIES if self._speculates else (),
            source=_STAGED,
        )
        fields = (*super()._state_fields(), offsets)
        if not self._speculates:
            return fields
        kept = Field(
            "num_accepted_tokens",
            "requests",
            "nothing",
            PaddingRule("fill", 1),
            source=_STAGED,
            repeats="states_kept",
            in_modes=_OF_DUMMIES,
        )
        return (*fields, *self._draft_states(), kept)

    def _draft_states(self) -> tuple[Field, ...]:
        """The columns of what has a slot for each token of a verify."""
        return tuple(
            Field(
                f"{_DRAFT_STATES}.{token}",
                "requests",
                "state",
                padded_state(),
                source=_STAGED,
                # Up to 0.17 dummy rows have the null block and padded ones the sentinel.
                in_modes=_OF_DUMMIES if padded_state().kind == "skip" else (),
                repeats=f"draft_states:{token}",
            )
            for token in range(self._config.draft_tokens)
        )

    @property
    def _speculates(self) -> bool:
        return self.vllm_config.speculative_config is not None

    def _runner_pools(self) -> Pools:
        conv, state = self._states()
        return Pools(
            delta_state=state.flatten(1), delta_conv_state=conv, states_start_at_zero=False
        )

    def _state_metadata(self) -> dict[str, torch.Tensor]:
        built = self._built
        if not self._speculates:
            return {
                "state_indices": built.non_spec_state_indices_tensor,
                "query_start_loc": built.non_spec_query_start_loc,
            }
        if self.ran_eagerly or built.spec_state_indices_tensor is None:
            return {}  # kernels get some of the rows, and others the rest
        columns = enumerate(built.spec_state_indices_tensor.unbind(1))
        return {
            **{f"{_DRAFT_STATES}.{token}": column for token, column in columns},
            "query_start_loc": built.spec_query_start_loc,
            "num_accepted_tokens": built.num_accepted_tokens,
        }
