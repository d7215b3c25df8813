"""Planted bugs of Mamba2's prompts, each of them the change of one line, and Falcon-H1 mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.content import STATE_WIDTH
from fuzzgraph.targets.sglang.attention_model import PrefillModel
from fuzzgraph.targets.sglang.mamba2_model import Mamba2Model
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.hybrid_prefill import (
    FalconPrefillSession,
    FalconPrefillTarget,
    Mamba2PrefillTarget,
)
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_changed_sessions

Change = Callable[[Any, Any], None]
"""What becomes of the mixer and the recurrent backend of an opened session."""


def _planted(change: Change) -> Mamba2PrefillTarget:
    target = Mamba2PrefillTarget("sglang-mamba-prefill")

    def changed(session: Any) -> None:
        change(session._attention.mixer, session.backend.linear_attn_backend)

    return with_changed_sessions(target, changed)


def _in_mixer(line: str, other: str) -> Mamba2PrefillTarget:
    return _planted(lambda mixer, _: change_line(mixer, "forward", line, other))


def _in_backend(name: str, line: str, other: str) -> Mamba2PrefillTarget:
    return _planted(lambda _, backend: change_line(backend, name, line, other))


def initial_states_lost() -> Mamba2PrefillTarget:
    """A prompt that goes on starts from nothing."""
    return _in_mixer("is not None and prep_initial_states:", "is None:")


def state_of_the_first_row_alone() -> Mamba2PrefillTarget:
    """The states behind other rows are not written."""
    line = "ssm_state[state_indices_tensor_p] = varlen_state"
    return _in_mixer(line, "ssm_state[state_indices_tensor_p[:1]] = varlen_state[:1]")


def rows_not_told_apart() -> Mamba2PrefillTarget:
    """All tokens of a batch count as one request's."""
    line = "seq_idx=mixed_metadata.seq_idx,"
    return _in_mixer(line, "seq_idx=torch.zeros_like(mixed_metadata.seq_idx),")


def readouts_of_the_token_before() -> Mamba2PrefillTarget:
    """A token reads with the readout of the one before it."""
    line = "C_p.view(1, num_prefill_tokens, local_num_groups, -1),"
    return _in_mixer(line, f"{line[:-1]}.roll(1, 1),")


def inputs_kept_one_token_early() -> Mamba2PrefillTarget:
    """The kept inputs of the convolution end one token before the kept state."""
    line = "x_to_track = x[:, metadata.track_conv_indices].transpose(0, 1)"
    return _in_mixer(line, "x_to_track = x[:, metadata.track_conv_indices - 1].transpose(0, 1)")


def state_of_the_chunk_before_kept() -> Mamba2PrefillTarget:
    """Where a prompt begins with a chunk, the state of another chunk is kept."""
    line = "h = h.squeeze(0)"
    return _in_backend("_track_mamba_state_extend", line, "h = h.squeeze(0).roll(1, 0)")


def states_kept_one_token_early() -> Mamba2PrefillTarget:
    """Where a prompt begins within a chunk, its kept state lacks the last token."""
    line = "to_device(plan.recompute_end_locs) if is_mamba2"
    return _in_backend("_init_track_ssm_indices_from_cpu", line, line.replace(") if", ") - 1 if"))


class _BreakingModel(Mamba2Model):
    """Falcon-H1's layer, which breaks a graph at its mixer."""

    def _recur(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        graphs = engine_module(
            "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph"
        )
        if not graphs.is_in_breakable_cuda_graph():
            return super()._recur(input_ids, positions, forward_batch)
        out = torch.empty(len(input_ids), STATE_WIDTH, dtype=self.embed.dtype)
        graphs.eager_on_graph(True)(self._into)(out, input_ids, positions)
        return out

    def _into(self, out: torch.Tensor, input_ids: torch.Tensor, positions: torch.Tensor) -> None:
        live = engine_module("sglang.srt.model_executor.runner_utils.forward_batch")
        out.copy_(super()._recur(input_ids, positions, live.get_forward_batch()))


class _BreakingPrefillModel(PrefillModel):
    kind = _BreakingModel


class _BreakingSession(FalconPrefillSession):
    model = _BreakingPrefillModel


class _Mended(FalconPrefillTarget):
    session = _BreakingSession


def mended_falcon() -> FalconPrefillTarget:
    """Falcon-H1's mixer breaks a graph, as Nemotron-H's does."""
    return _Mended("sglang-mamba-falcon-prefill")
