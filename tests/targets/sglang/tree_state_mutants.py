"""Verifies of trees by layers with a state, with one line changed; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.gdn import DeltaNetTarget
from fuzzgraph.targets.sglang.backends.kda import ChannelDecayTarget
from fuzzgraph.targets.sglang.backends.mamba2 import Mamba2Target
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line, change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_CONVOLUTION = "sglang.kernels.ops.mamba.causal_conv1d_triton"
_GATED = "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent"
_MIXER = "sglang.srt.layers.attention.mamba.mamba:MambaMixer2"
_COMMIT = "sglang.kernels.ops.mamba.mamba_state_scatter_triton"
_TARGETS = {"gdn": DeltaNetTarget, "kda": ChannelDecayTarget, "mamba": Mamba2Target}
Change = Callable[[Any], None]


def _target(layer: str, change: Change) -> DeltaNetTarget:
    target = _TARGETS[layer](f"sglang-{layer}-verify", "target_verify")
    return with_changed_sessions(target, change)


def _in_kernel(layer: str, module: str, name: str, line: str, other: str) -> DeltaNetTarget:
    return _target(layer, lambda session: change_kernel(session, module, name, line, other))


def _in_convolution(layer: str, line: str, other: str) -> DeltaNetTarget:
    return _in_kernel(layer, _CONVOLUTION, "_causal_conv1d_update_kernel", line, other)


def gdn_siblings_as_children() -> DeltaNetTarget:
    """A node's next sibling is looked up where its first child stands."""
    line = "tl.where(idx_tokens == idx_token, retrieve_next_siblings, 0)"
    return _in_convolution("gdn", line, line.replace("siblings", "tokens"))


def kda_tokens_before_for_parents() -> DeltaNetTarget:
    """The convolution goes back by tokens as in a chain."""
    line = "tl.where(idx_tokens == _idx_token, parent_idx_tokens, 0)"
    return _in_convolution("kda", line, line.replace("parent_idx_tokens", "idx_tokens - 1"))


def mamba_windows_the_other_way_round() -> DeltaNetTarget:
    """Inputs that are kept for a commit lie with the oldest one last."""
    line = "base_ptr + (KERNEL_WIDTH - j - 2) * stride_inter_win"
    return _in_convolution("mamba", line, "base_ptr + j * stride_inter_win")


def gdn_states_of_the_token_before() -> DeltaNetTarget:
    """The recurrence goes on from the state of the token before."""
    line = "tl.where(token_indices == step_idx, parent_idx_tokens, 0)"
    other = line.replace("parent_idx_tokens", "token_indices - 1")
    name = "fused_sigmoid_gating_delta_rule_update_kernel"
    return _in_kernel("gdn", _GATED, name, line, other)


def mamba_states_of_a_chain() -> DeltaNetTarget:
    """The mixer does not tell its recurrence of parents."""
    before = "cache_steps=draft_token_num,\n" + 16 * " "
    line = f"{before}retrieve_parent_token=metadata.retrieve_parent_token,"
    other = f"{before}retrieve_parent_token=None,"

    def change(session: Any) -> None:
        change_line_elsewhere(session, _MIXER, "forward", line, other)

    return _target("mamba", change)


def gdn_trees_without_siblings() -> DeltaNetTarget:
    """A replay does not refresh the siblings of its trees."""

    def change(session: Any) -> None:
        line = "self.retrieve_next_sibling_list[bs - 1][:bs_without_pad].copy_("
        backend = session.backend.linear_attn_backend
        change_line(backend, "_replay_metadata", line, "torch.zeros_like(")

    return _target("gdn", change)


def kda_commits_as_of_a_chain() -> DeltaNetTarget:
    """The state that stays is looked up by the number of tokens that stay."""
    line = "last = tl.load(accept_index_ptr + row + al - 1).to(tl.int64) - base"
    return _in_kernel("kda", _COMMIT, "_fused_commit_track_indices_kernel", line, "last = al - 1")
