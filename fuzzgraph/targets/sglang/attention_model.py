"""A model of one attention layer with known weights, as sglang runs it.

The layer is the engine's own `RadixAttention`; queries, keys and values are embeddings whose values
the harness knows (`fuzzgraph.content`), so that outputs can be judged. Projections, norms and
sampling are left out. Prefill runners look for the layer inside of a model: a breakable or full
graph holds the transformer body, `model.model`, and runs what surrounds it eagerly; the piecewise
one compiles the body.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for, next_token
from fuzzgraph.row_mixing import split_mixed, with_mixed
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module

ROW_MIXINGS = ("none", "fp8_scale", "nan")
"""The layers that the models below can have behind attention, for the target's `Capabilities`."""
_CONTEXT = "sglang.srt.model_executor.forward_context"


Rope = Literal["apart", "joined"]
"""How a model hands latent attention the rotary part of queries and keys: as tensors of their own,
or as the last columns (sglang FORWARD_ABSORB_CORE_ATTENTION_BACKENDS lists backends of the first
kind)."""


def in_forward_context(backend: Any, forward_batch: Any) -> contextlib.AbstractContextManager[Any]:
    """Where the layer looks its backend up, from 0.5.13 on; runners enter it by themselves."""
    if not has_module(_CONTEXT):
        return contextlib.nullcontext()
    module = engine_module(_CONTEXT)
    context = module.ForwardContext(attn_backend=backend)
    found: contextlib.AbstractContextManager[Any] = call_with_known(
        module.forward_context, context=context, ctx=context, forward_batch=forward_batch
    )
    return found


def as_logits(hidden: torch.Tensor | None) -> Any:
    """What the engine's runners take from a model, with this in the place of logits."""
    logits = engine_module("sglang.srt.layers.logits_processor")
    return logits.LogitsProcessorOutput(next_token_logits=hidden)


def outputs_in(handed_out: Any, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Copies of the outputs in what the models below gave a runner, by name; each [tokens, heads,
    v_head_dim]. `mixed_outputs` says which there are beside `attention`."""
    return split_mixed(handed_out.next_token_logits, config)


class AttentionModel:
    """What the engine's model runner calls its model.

    With latent attention the layer is `attn_mqa` of a DeepSeek model, whose queries have absorbed
    the projection of keys: `head_dim` columns, of which a latent row's first `v_head_dim`
    (kv_lora_rank) are its value and the others (qk_rope_head_dim) are rotary.
    """

    shared_experts_config = None
    modules = tuple
    """TensorRT-LLM's backend walks the modules of a model: it finds none."""

    def __init__(self, config: EngineConfig, device: torch.device, rope: Rope = "apart") -> None:
        self._config = config
        self._rope = rope
        weights = content_for(config).weights
        self.embed = torch.empty_like(weights["embed"], device=device).copy_(weights["embed"])
        rows = weights["pos_embed"]
        self.pos_embed = torch.empty_like(rows, device=device).copy_(rows)
        self.layer = engine_module("sglang.srt.layers.radix_attention").RadixAttention(
            num_heads=config.num_q_heads,
            head_dim=config.head_dim,
            scaling=config.head_dim**-0.5,
            num_kv_heads=config.num_kv_heads,
            layer_id=0,
            v_head_dim=config.v_head_dim,
        )

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """The outputs where a model would give logits."""
        return as_logits(self.attend(input_ids, positions, forward_batch))

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """Attention of the tokens' embeddings and the layer behind it; `outputs_in` splits them."""
        query = self._config.num_q_heads * self._config.head_dim
        keys = query + self._config.num_kv_heads * self._config.head_dim
        packed = self.embed.index_select(0, input_ids) + self.pos_embed.index_select(0, positions)
        q, k, v = packed[:, :query], packed[:, query:keys], packed[:, keys:]
        if self._config.attention == "mla":
            out = self._attend_latent(q, k, forward_batch, **self.more(positions, forward_batch))
        else:
            out = self.layer(q.contiguous(), k.contiguous(), v.contiguous(), forward_batch)
        return with_mixed(out, self._config)

    def more(self, positions: torch.Tensor, forward_batch: Any) -> dict[str, Any]:
        """What a model hands a latent layer beside queries and keys, by the layer's names."""
        return {}

    def _attend_latent(
        self, q: torch.Tensor, k: torch.Tensor, forward_batch: Any, **more: Any
    ) -> torch.Tensor:
        """As DeepSeek's `forward_absorb_core` calls it, with the strides that it has there."""
        config = self._config
        rank = config.v_head_dim
        q = q.view(-1, config.num_q_heads, config.head_dim)
        # The absorbed part comes out of a product by heads, the normed latent is a tensor of its
        # own, and the rotary parts are slices of the projections.
        q_nope = q[..., :rank].transpose(0, 1).contiguous().transpose(0, 1)
        k_nope = k[:, None, :rank].contiguous()
        q_rope, k_rope = q[..., rank:], k[:, None, rank:]
        out: torch.Tensor
        if self._rope == "apart":
            apart = {"q_rope": q_rope, "k_rope": k_rope}
            out = self.layer(q_nope, k_nope, k_nope, forward_batch, **apart, **more)
        else:
            q, k = torch.cat((q_nope, q_rope), -1), torch.cat((k_nope, k_rope), -1)
            out = self.layer(q, k, k_nope, forward_batch, **more)
        return out.reshape(len(out), -1)  # some backends keep heads apart, as a model takes either


class DraftModel(AttentionModel):
    """A draft model of one layer, which hands out scores and hidden states of nothing."""

    attended: torch.Tensor
    """The outputs of all tokens of the last forward."""

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """Logits and hidden states of zeros, of the rows that the engine asks for."""
        self.attended = self.attend(input_ids, positions, forward_batch)
        return no_draft(forward_batch)

    def attend_drafts(self, tokens: torch.Tensor, forward_batch: Any, backends: list[Any]) -> None:
        """All steps of a draft of one branch, each on its own backend; outputs by row, then step.

        As the workers' `draft_forward` does, it sets what differs between steps on the batch.

        Args:
            tokens: [rows] the first token of each row.
            backends: one for each step.
        """
        all_slots, steps = forward_batch.out_cache_loc, self._config.spec_steps
        held = {name: getattr(forward_batch, name, None) for name in ("input_ids", "attn_backend")}
        slots = all_slots.view(-1, steps)
        branch, outputs = torch.zeros_like(tokens), []
        for step in range(steps):
            forward_batch.input_ids, forward_batch.out_cache_loc = tokens, slots[:, step]
            # Up to 0.5.12 the layer asks the batch.
            forward_batch.attn_backend = backends[step]
            with in_forward_context(backends[step], forward_batch):
                positions = forward_batch.positions + step
                outputs.append(self.attend(tokens, positions, forward_batch))
            tokens = next_token(tokens, step, branch)
        forward_batch.out_cache_loc = all_slots
        for name, value in held.items():
            setattr(forward_batch, name, value)
        self.attended = torch.stack(outputs, 1).flatten(0, 1)


def no_draft(forward_batch: Any) -> Any:
    """What a draft model gives a runner, with zeros for logits and hidden states."""
    logits = engine_module("sglang.srt.layers.logits_processor")
    buffer = forward_batch.next_token_logits_buffer
    hidden = forward_batch.spec_info.hidden_states
    return logits.LogitsProcessorOutput(
        next_token_logits=buffer * 0,
        hidden_states=hidden[: buffer.shape[0]] * 0,
    )


class _Body(torch.nn.Module):
    """The outputs of token ids and positions."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__()
        # The engine walks its modules and their layers; parameters it finds none.
        self.attention = AttentionModel(config, device)
        self.layers = [Stub(self_attn=Stub(attn=self.attention.layer))]

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        attended: torch.Tensor = self.attention.attend(input_ids, positions, forward_batch)
        return attended * 1  # something behind attention, so that the last piece holds work


class PrefillModel:
    """A body where prefill runners look for it; its output takes the place of logits."""

    shared_experts_config = None

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self.model = _Body(config, device)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        return as_logits(self.model(input_ids, positions, forward_batch))
