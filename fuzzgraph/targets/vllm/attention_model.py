"""A model of one attention layer with known weights, as vLLM runs it.

The layer is the engine's own `Attention`; queries, keys and values are embeddings whose values the
harness knows (`fuzzgraph.content`), so that outputs can be judged. Projections, norms and rotary
embeddings are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import Content, content_for
from fuzzgraph.row_mixing import with_mixed
from fuzzgraph.targets.offline.demands import demand_instance, demand_rows
from fuzzgraph.targets.offline.embeddings import looked_up_qkv
from fuzzgraph.targets.offline.second_layer import SecondLayer, joined_layers, second_content
from fuzzgraph.targets.vllm.configuration import ARCHITECTURE
from fuzzgraph.targets.vllm.latent_layer import attend_latent, latent_layer
from fuzzgraph.targets.vllm.release import engine_module, has_module
from fuzzgraph.targets.vllm.sliding_window import LAYER as SLIDING_LAYER
from fuzzgraph.world import VOCAB

FORWARD = "the model's forward"
LAYER = "model.layers.0.self_attn.attn"
_ATTENTION = ("vllm.model_executor.layers.attention", "vllm.attention.layer")
"""Where the layer lies, since 0.16 and before."""


def register(model: type[OneLayer]) -> None:
    """Make the model known to the engine, as a plug-in does it; once per process."""
    registry = engine_module("vllm.model_executor.models").ModelRegistry
    if model.architecture not in registry.get_supported_archs():
        registry.register_model(model.architecture, model)


class OneLayer(torch.nn.Module):
    """Embeddings whose sum is q, k and v, and the engine's attention over them.

    The engine makes it by its own loader, with nothing but its configuration; `opening` says whose
    weights it has.
    """

    architecture = ARCHITECTURE
    """Name under which the engine knows the model."""
    vocab = VOCAB
    """Token ids that it knows."""
    opening: EngineConfig
    """Of the session that is being opened."""

    embed: torch.Tensor
    """What each token is embedded as; a plain attribute, because the dummy loader fills what is a
    parameter or a buffer at random."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.fuzzed = type(self).opening
        self.to_sample: Callable[[], Sequence[int]] = tuple
        """What the sampler has to give, by row of the logits."""
        self.shown: torch.Tensor | None = None
        """What the engine made logits of."""
        self._make_layer(vllm_config)

    def _make_layer(self, vllm_config: Any) -> None:
        config = self.fuzzed
        weights = content_for(config).weights
        self.embed = on_device(weights["embed"])
        self.pos_embed = on_device(weights["pos_embed"])

        def layer(name: str, window: int | None = None) -> Any:
            return attention_layer(config, vllm_config, name, window)

        self.attn = layer(LAYER)
        self.sliding = None
        if config.swa_window:
            windowed = layer(SLIDING_LAYER, config.swa_window + 1)
            self.sliding = SecondLayer(config, windowed, on_device)

    def take_scales(self) -> None:
        """What a checkpoint with FP8 KV leaves on the layers; the engine's loader leaves 1."""
        if self.fuzzed.kv_dtype != "auto":
            _take_scales(self.attn, content_for(self.fuzzed))
            if self.sliding is not None:
                _take_scales(self.sliding.attend, second_content(self.fuzzed))

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.embed.index_select(0, input_ids)

    get_input_embeddings = embed_input_ids

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """The outputs where a model would give hidden states."""
        config = self.fuzzed
        demand_rows(input_ids, None, "input_ids", FORWARD)
        demand_rows(positions, len(input_ids), "positions", FORWARD)
        q, k, v = looked_up_qkv(self.embed, self.pos_embed, input_ids, positions, config, FORWARD)
        if config.attention == "mla":
            out = attend_latent(self.attn, q, k, config)
        else:
            out = self.attn(q.contiguous(), k.contiguous(), v.contiguous())
        demand_instance(out, torch.Tensor, "what attention computed", FORWARD)
        first = with_mixed(out, config)
        if self.sliding is None:
            return first
        return joined_layers(first, self.sliding.forward(input_ids, positions))

    def compute_logits(self, hidden_states: torch.Tensor, *_: Any) -> torch.Tensor:
        """Logits by which a greedy sampler gives the tokens that the case goes on with."""
        self.shown = hidden_states
        logits = hidden_states.new_zeros(len(hidden_states), self.vocab, dtype=torch.float32)
        for row, token in enumerate(self.to_sample()[: len(logits)]):
            logits[row, token] = 1.0
        return logits


def attention_layer(
    config: EngineConfig, vllm_config: Any, name: str, window: int | None = None
) -> Any:
    """The engine's layer of this name."""
    if config.attention == "mla":
        return latent_layer(config, vllm_config, name)
    return _attention_layer()(
        config.num_q_heads,
        config.head_dim,
        config.head_dim**-0.5,
        num_kv_heads=config.num_kv_heads,
        cache_config=vllm_config.cache_config,
        per_layer_sliding_window=window,
        prefix=name,
    )


def _take_scales(layer: Any, content: Content) -> None:
    """Scales of keys and values, as vLLM's `BaseKVCacheMethod` takes them from a checkpoint."""
    for name, scale in (("_k_scale", content.k_scale), ("_v_scale", content.v_scale)):
        getattr(layer, name).fill_(scale)
        setattr(layer, f"{name}_float", scale)
        if hasattr(layer, f"{name}_cpu"):
            getattr(layer, f"{name}_cpu").fill_(scale)


def _attention_layer() -> Any:
    modules = map(engine_module, filter(has_module, _ATTENTION))
    return next(module.Attention for module in modules if hasattr(module, "Attention"))


def on_device(weight: torch.Tensor) -> torch.Tensor:
    """A copy where the loader makes a model's parameters."""
    return torch.empty(weight.shape, dtype=weight.dtype).copy_(weight)
