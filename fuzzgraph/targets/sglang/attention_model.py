"""A model of attention layers with known weights, as sglang runs it: of one, or of several that a
config names.

A layer is the engine's own `RadixAttention`; queries, keys and values are embeddings whose values
the harness knows (`fuzzgraph.content`), so that outputs can be judged. Projections, norms and
sampling are left out. Prefill runners look for the layer inside of a model: a breakable or full
graph holds the transformer body, `model.model`, and runs what surrounds it eagerly; the piecewise
one compiles the body.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig, attention_layers
from fuzzgraph.content import Content
from fuzzgraph.reference.draft_layers import content_of_layer, layer_content
from fuzzgraph.row_mixing import with_mixed
from fuzzgraph.targets.offline.demands import (
    demand_computable,
    demand_instance,
    demand_rows,
    demand_size,
)
from fuzzgraph.targets.offline.embeddings import looked_up_qkv
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.second_layer import (
    SecondLayer,
    joined_layers,
    split_layers,
)
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.sliding_window import FULL_LAYER, WindowSlots
from fuzzgraph.targets.sglang.stubs.fp4_kv import checkpoint_scale, load_scales
from fuzzgraph.targets.sglang.two_batches import attend_in_halves
from fuzzgraph.targets.sglang.unified_pool import PageTables
from fuzzgraph.world import Batch

ROW_MIXINGS = ("none", "fp8_scale", "nan")
"""The layers that the models below can have behind attention, for the target's `Capabilities`."""
FORWARD = "the model's forward"
_ATTENDED = "what attention computed"
_INFO = "sglang.srt.model_executor.forward_batch_info"
_CONTEXT = "sglang.srt.model_executor.forward_context"
_LOGITS = "sglang.srt.layers.logits_processor"


Written = tuple[torch.Tensor, Any, torch.Tensor]
"""Memory of the engine, an index into it, what is put there."""
Rope = Literal["apart", "joined"]
"""How a model hands latent attention the rotary part of queries and keys: as tensors of their own,
or as the last columns (sglang FORWARD_ABSORB_CORE_ATTENTION_BACKENDS lists backends of the first
kind)."""


@contextlib.contextmanager
def as_loaded(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Inside, layers are made as while an engine's loader makes a model: on this device, and in
    this dtype where they name none."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


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
    logits = engine_module(_LOGITS)
    return logits.LogitsProcessorOutput(next_token_logits=hidden)


def outputs_in(handed_out: Any, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Copies of the outputs in what the models below gave a runner, by name; each [tokens, heads,
    v_head_dim]. `attention_outputs` and `mixed_outputs` say which there are."""
    return split_layers(handed_out.next_token_logits, config)


def hidden_in(handed_out: Any, config: EngineConfig) -> dict[str, torch.Tensor]:
    """The same in the hidden states that a runner handed out beside logits."""
    return split_layers(handed_out.hidden_states, config)


def demand_forward(input_ids: Any, positions: Any, forward_batch: Any) -> None:
    """What every model of the engine takes.

    Raises:
        EngineError: a real model could not compute with it.
    """
    demand_instance(forward_batch, engine_module(_INFO).ForwardBatch, "forward_batch", FORWARD)
    demand_rows(input_ids, None, "input_ids", FORWARD)
    demand_rows(positions, len(input_ids), "positions", FORWARD)


def _demand_backend() -> None:
    """From 0.5.13 on a layer attends on what the runner's forward context names.

    Raises:
        EngineError: it names no attention backend.
    """
    if not has_module(_CONTEXT):
        return
    found = engine_module(_CONTEXT).get_attn_backend()
    kind = engine_module("sglang.srt.layers.attention.base_attn_backend").AttentionBackend
    demand_instance(found, kind, "attn_backend of the forward context", FORWARD)


def _rows_for_logits(hidden: torch.Tensor, forward_batch: Any) -> torch.Tensor:
    """The rows that the engine's own logits processor makes logits of, by what it reads in a batch.

    The projection behind it is left out: it would cost more than all that it could show.
    """
    logits = engine_module(_LOGITS)
    metadata = logits.LogitsMetadata.from_forward_batch(forward_batch)
    rows: torch.Tensor = logits.LogitsProcessor._get_pruned_states(
        Stub(), hidden, None, None, metadata
    )[0]
    return rows


_LAYERS_BEFORE = 2
"""On the ranks of a pipeline before a later one."""


class AttentionModel:
    """What the engine's model runner calls its model.

    With latent attention the layer is `attn_mqa` of a DeepSeek model, whose queries have absorbed
    the projection of keys: `head_dim` columns, of which a latent row's first `v_head_dim`
    (kv_lora_rank) are its value and the others (qk_rope_head_dim) are rotary.

    Args:
        draft_layer: which one it is, in a draft model with several.
    """

    shared_experts_config = None
    full_layer = FULL_LAYER
    """Number of the layer that sees all keys."""
    modules = tuple
    """TensorRT-LLM's backend walks the modules of a model: it finds none."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        rope: Rope = "apart",
        draft_layer: int = 0,
    ) -> None:
        self._config = config
        self._rope = rope

        def on_device(weight: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(weight, device=device).copy_(weight)

        content = layer_content(config, draft_layer)
        self.embed = on_device(content.weights["embed"])
        self.pos_embed = on_device(content.weights["pos_embed"])
        local = {"use_irope": True} if config.attention_chunk_size else {}
        self._places = [layer.place for layer in attention_layers(config)]
        first = self._places[0] if config.layer_types else first_layer(config) + self.full_layer
        self.layer = engine_layer(config, content, device, layer_id=first, **local)
        self._maps: WindowSlots | PageTables | None = None
        self._others: list[SecondLayer] = []
        for number, layer in enumerate(attention_layers(config)[1:], 1):
            windowed = {"sliding_window_size": config.swa_window} if layer.group else {}
            own = content_of_layer(config, number, draft_layer)
            attend = engine_layer(config, own, device, layer_id=layer.place, **windowed)
            self._others.append(SecondLayer(config, attend, on_device, own))

    @property
    def _attended_columns(self) -> int:
        """Of what attention gives for a token."""
        return self._config.num_q_heads * self._config.v_head_dim

    @property
    def layers(self) -> tuple[Any, ...]:
        """The engine's layers that attend, by their numbers."""
        found = (self.layer, *(each.attend for each in self._others))
        return tuple(found[number] for number in self._in_order)

    @property
    def companions(self) -> tuple[Any, ...]:
        """Beside each of `layers` the one that attends to its expanded rows; None without one."""
        return (None,) * len(self.layers)

    @property
    def _in_order(self) -> list[int]:
        """Which of `case.attention_layers` a model computes one after the other."""
        return sorted(range(len(self._places)), key=self._places.__getitem__)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """The outputs where a model would give logits."""
        demand_forward(input_ids, positions, forward_batch)
        if self._config.two_batch_overlap and forward_batch.can_run_tbo:
            columns = self._attended_columns * len(self.layers)
            nothing = torch.empty(0, columns, dtype=self.embed.dtype, device=self.embed.device)
            attended = attend_in_halves(self.attend, nothing, input_ids, positions, forward_batch)
        else:
            attended = self.attend(input_ids, positions, forward_batch)
        return as_logits(_rows_for_logits(attended, forward_batch))

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """Attention of the tokens' embeddings and the layer behind it; `outputs_in` splits them."""
        _demand_backend()
        found: dict[int, torch.Tensor] = {}
        for number in self._in_order:
            if number:
                given = self._others[number - 1], input_ids, positions, forward_batch
                found[number] = self._attend_other(*given)
            else:
                found[0] = self._attend_first(input_ids, positions, forward_batch)
        return joined_layers(*(found[number] for number in range(len(found))))

    def _attend_first(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """Of the first layer, with what mixes its rows."""
        q, k, v = self.qkv(input_ids, positions)
        more = self.more(input_ids, positions, forward_batch)
        if self._config.attention == "mla":
            out = self._attend_latent(q, k, forward_batch, **more)
        else:
            out = self.attend_heads(q, k, v, forward_batch, **more)
        return with_mixed(out, self._config)

    def _attend_other(
        self, other: SecondLayer, input_ids: torch.Tensor, positions: torch.Tensor, batch: Any
    ) -> torch.Tensor:
        """Of a layer that is not the first."""
        return other.forward(input_ids, positions, batch)

    def attend_heads(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward_batch: Any, **more: Any
    ) -> torch.Tensor:
        """Attention of a model's own heads, [tokens, heads * v_head_dim]."""
        out: torch.Tensor = self.layer(
            q.contiguous(), k.contiguous(), v.contiguous(), forward_batch, **more
        )
        demand_size(out, len(q), self._attended_columns, _ATTENDED, FORWARD)
        demand_computable(out, _ATTENDED, FORWARD)
        return out

    def qkv(
        self, input_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of the tokens."""
        where = self._config, FORWARD
        return looked_up_qkv(self.embed, self.pos_embed, input_ids, positions, *where)

    def use(self, pool: Any, allocator: Any) -> None:
        """Called once with the KV pool on which the model runs, and what gives out its slots."""
        if self._config.kv_dtype == "nvfp4":
            load_scales(pool, self.layers)
        if self._config.virtual_pages:
            tables = allocator.full_v2p_page_table, allocator.swa_v2p_page_table
            self._maps = PageTables(tables, self._config.page_size)
        elif self._config.swa_window:
            self._maps = WindowSlots(pool.full_to_swa_index_mapping)

    def past(self, batch: Batch) -> Iterable[Written]:
        """What earlier steps have left for this one beyond KV, where the engine keeps it."""
        return () if self._maps is None else self._maps.of(batch)

    def more(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> dict[str, Any]:
        """What a model hands its layer beside queries, keys and values, by the layer's names."""
        return {}

    def _attend_latent(
        self, q: torch.Tensor, k: torch.Tensor, forward_batch: Any, **more: Any
    ) -> torch.Tensor:
        """As DeepSeek's `forward_absorb_core` calls it, with the strides that it has there."""
        q_nope, q_rope, k_nope, k_rope = latent_parts(q, k, self._config)
        out: torch.Tensor
        if self._rope == "apart":
            apart = {"q_rope": q_rope, "k_rope": k_rope}
            out = self.layer(q_nope, k_nope, k_nope, forward_batch, **apart, **more)
        else:
            q, k = torch.cat((q_nope, q_rope), -1), torch.cat((k_nope, k_rope), -1)
            out = self.layer(q, k, k_nope, forward_batch, **more)
        demand_size(out, len(q), self._attended_columns, _ATTENDED, FORWARD)
        demand_computable(out, _ATTENDED, FORWARD)
        return out.flatten(1)  # some backends keep heads apart, as a model takes either


def latent_parts(
    q: torch.Tensor, k: torch.Tensor, config: EngineConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and latent rows in two parts, each [tokens, heads, columns]: what is absorbed or
    normed, and what is rotary, with the strides that a DeepSeek model gives them."""
    rank = config.v_head_dim
    q = q.view(-1, config.num_q_heads, config.head_dim)
    # The absorbed part comes out of a product by heads, the normed latent is a tensor of its
    # own, and the rotary parts are slices of the projections.
    q_nope = q[..., :rank].transpose(0, 1).contiguous().transpose(0, 1)
    k_nope = k[:, None, :rank].contiguous()
    return q_nope, q[..., rank:], k_nope, k[:, None, rank:]


def first_layer(config: EngineConfig) -> int:
    """Number of the first layer on this rank of a pipeline."""
    return _LAYERS_BEFORE if config.later_stage else 0


def engine_layer(config: EngineConfig, content: Content, device: torch.device, **more: Any) -> Any:
    """The engine's layer; with the scales that a checkpoint with quantised KV leaves on it (sglang
    kv_cache.py)."""
    layer = engine_module("sglang.srt.layers.radix_attention").RadixAttention(
        num_heads=config.num_q_heads,
        head_dim=config.head_dim,
        scaling=config.head_dim**-0.5,
        num_kv_heads=config.num_kv_heads,
        v_head_dim=config.v_head_dim,
        logit_cap=float(config.logit_cap),
        **more,
    )
    if config.kv_dtype != "auto":
        for name, scale in (("k_scale", content.k_scale), ("v_scale", content.v_scale)):
            if config.kv_dtype == "nvfp4":
                scale = checkpoint_scale(scale, config)
            setattr(layer, f"{name}_float", scale)
            setattr(layer, name, torch.full((), scale, dtype=torch.float32, device=device))
    return layer


class Body(torch.nn.Module):
    """The outputs of token ids and positions."""

    def __init__(
        self, config: EngineConfig, device: torch.device, kind: type[AttentionModel]
    ) -> None:
        super().__init__()
        # The engine walks its modules and their layers; parameters it finds none.
        self.attention = kind(config, device)

    @property
    def layers(self) -> list[Stub]:
        """Where an engine finds the layers of a model."""
        pairs = zip(self.attention.layers, self.attention.companions, strict=True)
        return [Stub(self_attn=Stub(attn=layer, attn_mha=other)) for layer, other in pairs]

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
    kind: type[AttentionModel] = AttentionModel
    """What attends in the body."""
    body_kind: type[Body] = Body
    decides_on_host = False
    """Whether it decides by lengths on the host how it computes."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self.model = self.body_kind(config, device, self.kind)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        return as_logits(self.body(input_ids, positions, forward_batch))

    def body(self, input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        """The body's output."""
        return self.model(input_ids, positions, forward_batch)


class FullPrefillModel(PrefillModel):
    """The same for full graphs, whose runner cuts logits to the requests: its output are the hidden
    states, which servers ask for with `return_hidden_states`, and of each request's last row."""

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        hidden = self.body(input_ids, positions, forward_batch)
        logits = engine_module(_LOGITS)
        return logits.LogitsProcessorOutput(
            next_token_logits=_rows_for_logits(hidden, forward_batch), hidden_states=hidden
        )
