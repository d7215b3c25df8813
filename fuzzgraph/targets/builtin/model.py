"""The model that the engine serves: attention layers with known weights, one object each.

qkv = embed[input_ids] + pos_embed[positions], plus mrope_embed[mrope] on the query; new keys and
values go to out_cache_loc before attention reads the pool. Weights and what the sums must be are
`fuzzgraph.content`'s; which rows are live is the runners' business.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.row_mixing import mix_rows, mixes_rows, served
from fuzzgraph.targets.builtin.attention import AttentionBatch, kernel
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata
from fuzzgraph.targets.builtin.pools import PagedKVPool, StatePool
from fuzzgraph.targets.builtin.shape import DTYPES, Extent


@dataclass(slots=True)
class ForwardInputs:
    """Views of the static input buffers, for one batch size."""

    extent: Extent
    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor
    mrope: torch.Tensor | None = None
    state_indices: torch.Tensor | None = None
    num_token_non_padded: torch.Tensor | None = None
    sharded_tokens: int = 0
    """Padded tokens that the attention-TP ranks share out."""
    crosses: bool = False
    """Whether attention over the encoder's tokens is part of this forward."""
    ragged: bool = False
    """Whether some tokens may belong to no row, so that attention leaves them out."""


class BuiltinModel:
    """Weights on the device, and the forward in small steps."""

    def __init__(
        self,
        config: EngineConfig,
        kv: PagedKVPool,
        state: StatePool | None,
        local: LocalTokens,
        device: torch.device,
        layer: int = 0,
    ) -> None:
        self.config = config
        self.kv = kv
        self.state = state
        self.local = local
        self.device = device
        self.dtype = DTYPES[config.dtype]
        self.kernel = kernel(config.kernels)
        weights = content_for(config, layer).weights
        self.embed = self.load(weights["embed"])
        self.pos_embed = self.load(weights["pos_embed"])
        self.mrope_embed = self.load(self.with_absent_row(weights["mrope_embed"]))
        self.state_in = self.load(weights["state_in"]) if state is not None else None
        self.state_keep = self.load(weights["state_keep"]) if state is not None else None
        self.query_columns = config.num_q_heads * config.head_dim
        self.key_columns = config.num_kv_heads * config.head_dim

    def load(self, weight: torch.Tensor) -> torch.Tensor:
        """The engine's own copy on its device."""
        return torch.empty_like(weight, device=self.device).copy_(weight)

    @staticmethod
    def with_absent_row(weight: torch.Tensor) -> torch.Tensor:
        """One more row, of zeros, for tokens without that input."""
        return torch.cat((weight, torch.zeros_like(weight[:1])))

    # the forward

    def forward(self, inputs: ForwardInputs, metadata: FullMetadata) -> dict[str, torch.Tensor]:
        """All of it; output name -> [tokens or rows, ...]."""
        q = self.before_attention(inputs)
        out = self.new_output(inputs)
        self.attend(q, out, inputs, metadata)
        return self.after_attention(out, inputs)

    def before_attention(self, inputs: ForwardInputs) -> torch.Tensor:
        """q [tokens, heads, head_dim]; the new keys and values are in the pool afterwards."""
        qkv = self.project(inputs.input_ids, inputs.positions)
        q, k, v = self.split(qkv, inputs.mrope)
        self.store(inputs.out_cache_loc, k, v)
        return q

    def attend(
        self,
        q: torch.Tensor,
        out: torch.Tensor,
        inputs: ForwardInputs,
        metadata: FullMetadata,
    ) -> None:
        """Self-attention into `out`, then cross attention on top."""
        self.attention(q, out, metadata.attention[0])
        if inputs.crosses and metadata.cross is not None:
            self.cross_attention(q, out, metadata.cross)

    def after_attention(self, out: torch.Tensor, inputs: ForwardInputs) -> dict[str, torch.Tensor]:
        outputs = {"attention": out}
        if mixes_rows(self.config):
            outputs["mixed"] = self.mix(out)
        if inputs.state_indices is not None and self.state is not None:
            outputs["state"] = self.advance_state(inputs.input_ids, inputs.state_indices)
        if inputs.num_token_non_padded is not None:
            outputs["moe"] = self.local_experts(out, inputs, inputs.num_token_non_padded)
        return outputs

    # its steps

    def project(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Packed q, k, v: [tokens, columns]."""
        return self.embed.index_select(0, input_ids).add_(self.pos_embed.index_select(0, positions))

    def split(
        self, qkv: torch.Tensor, mrope: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config, keys = self.config, self.query_columns + self.key_columns
        q = self.rotate(qkv[:, : self.query_columns], mrope)
        k = qkv[:, self.query_columns : keys].view(-1, config.num_kv_heads, config.head_dim)
        v = qkv[:, keys:].view(-1, config.num_kv_heads, config.v_head_dim)
        return q.view(-1, config.num_q_heads, config.head_dim), k, v

    def rotate(self, q: torch.Tensor, mrope: torch.Tensor | None) -> torch.Tensor:
        """The query with the optional position input; contiguous."""
        if mrope is None:
            return q.contiguous()
        return self.mrope_embed.index_select(0, mrope).add_(q)

    def store(self, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        self.kv.write(slots, k, v)

    def new_output(self, inputs: ForwardInputs) -> torch.Tensor:
        """[tokens, heads, v_head_dim]; zeros where attention may leave tokens out."""
        shape = (inputs.extent.tokens, self.config.num_q_heads, self.config.v_head_dim)
        make = torch.zeros if inputs.ragged else torch.empty
        return make(shape, dtype=self.dtype, device=self.device)

    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        self.kernel(q, self.kv.keys(), self.kv.values(), out, batch)

    def cross_attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        """Add attention over the encoder's tokens; rows without any get nothing added."""
        cross = torch.zeros_like(out)
        self.attention(q, cross, batch)
        out.add_(cross)

    def mix(self, out: torch.Tensor) -> torch.Tensor:
        """The layer behind attention, of all rows that the forward computes."""
        return mix_rows(out, self.config)

    def advance_state(self, input_ids: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """[rows, width] each row's state after its token, stored back to its slot."""
        assert self.state is not None and self.state_in is not None, "called without a state pool"
        assert self.state_keep is not None
        state = self.state.read(slots).mul_(self.state_keep)
        state.add_(self.state_in.index_select(0, input_ids))
        self.state.write(slots, state)
        return state

    def local_experts(
        self, out: torch.Tensor, inputs: ForwardInputs, live_tokens: torch.Tensor
    ) -> torch.Tensor:
        """This rank's shard of the tokens; rows that are not live, or that a router drops, come out
        as zeros."""
        first, end = self.local.shard(inputs.sharded_tokens)
        shard = out[first:end]
        if self.config.row_mixing == "router":
            taken = served(inputs.input_ids[first:end], live_tokens)
        else:
            taken = torch.arange(len(shard), device=self.device) < live_tokens
        return shard * taken.to(out.dtype)[:, None, None]
