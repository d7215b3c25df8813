"""A model with LoRA: linear layers that the engine wraps, beside one layer of attention.

The linear layers are the engine's own, with the weights of `fuzzgraph.adapted_layer`, and all get
the embedding of their token. `LoRAManager` wraps them as it does those of Llama. Beside
data-parallel ranks the engine's own stages of a layer gather the tokens of all of them before the
layer that they share, and tell the kernels whose adapters these have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph import adapted_layer
from fuzzgraph.adapted_layer import (
    ADAPTED_INPUT,
    EMBEDDING,
    HEAD,
    LAYERS,
    SHARED,
    Layer,
    Part,
)
from fuzzgraph.case import EngineConfig
from fuzzgraph.case.adapters import most_adapters
from fuzzgraph.experts.adapted import PRODUCTS
from fuzzgraph.targets.offline.demands import demand_lookup, demand_size
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.adapted_experts_model import (
    AdaptedExperts,
    described_experts,
    expert_tensors,
)
from fuzzgraph.targets.sglang.attention_model import FORWARD, AttentionModel, Rope, Written
from fuzzgraph.targets.sglang.experts_beside_ranks import decoder_stages, start_layers
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.adapter_ranks import AdapterRanks
from fuzzgraph.targets.sglang.stubs.tp_groups import rows_of_ranks
from fuzzgraph.world import VOCAB, Batch

LINEAR = "sglang.srt.layers.linear"
EMBEDDINGS = "sglang.srt.layers.vocab_parallel_embedding"
_COMPUTED = "what a layer with adapters computed"
_BLOCKS = {"qkv_proj": "self_attn", "o_proj": "self_attn", "gate_up_proj": "mlp"}
_SHARED_EXPERT = "shared_expert"
"""Where gate and up lie in the block of a model with routed experts (sglang qwen2_moe.py)."""

_OF_ATTENTION: Mapping[str, Any] = MappingProxyType(
    {"parallel_group": "attn_tp", "tp_size": 1, "tp_rank": 0, "reduce_results": False}
)
"""By the names that releases have for it (sglang qwen3_moe.py Qwen3MoeAttention)."""


class AdaptedModel(AttentionModel):
    """Tokens at positions; attention, then the columns of the linear layers."""

    def __init__(self, config: EngineConfig, device: torch.device, rope: Rope = "apart") -> None:
        super().__init__(config, device, rope)
        self._device = device
        self.linear: torch.nn.Module | None = None
        self._experts: AdaptedExperts | None = None
        self._ranks: AdapterRanks | None = None
        inputs = adapted_layer.adapted_inputs().to(getattr(torch, config.dtype))
        self.inputs = torch.empty_like(inputs, device=device).copy_(inputs)

    def open_ranks(self, ranks: AdapterRanks) -> None:
        """From here on the model is one of several ranks."""
        most, dtype = ranks.open(self._device, self.inputs), self.inputs.dtype
        self._ranks = ranks
        self._attention_stage, self._shared_stage, _ = decoder_stages(sparse=False)
        shape = self._config.dp_size * most, adapted_layer.shared_columns(self._config)
        self._given = torch.empty(shape, dtype=dtype, device=self._device)

    def past(self, batch: Batch) -> Iterable[Written]:
        yield from super().past(batch)
        if self._ranks is not None:
            yield from self._ranks.past(batch)

    def given_of_ranks(self, sizes: list[int]) -> torch.Tensor:
        """[tokens of all ranks, columns] what the shared layer gave in the last run.

        Args:
            sizes: tokens of each rank.
        """
        assert self._ranks is not None
        return rows_of_ranks(self._given, self._ranks.starts, sizes)

    def open_layers(self, described: Any) -> torch.nn.Module:
        """The linear layers as a model of this description, whose modules have Llama's names."""
        module, dtype = engine_module(LINEAR), getattr(torch, self._config.dtype)
        common = dict(bias=False, params_dtype=dtype)
        layer = torch.nn.Module()
        for block in dict.fromkeys(map(self._block, LAYERS)):
            _add_module(layer, block, torch.nn.Module())
        for each in LAYERS:
            name = f"model.layers.0.{self._block(each)}.{each.name}"
            made = _linear(module, each, prefix=name, **common, **self._place(each))
            weights = torch.cat([self._base_weight(each, part) for part in each.parts])
            made.weight.data = torch.empty_like(weights, dtype=dtype, device=self._device).copy_(
                weights
            )
            layer.get_submodule(self._block(each)).add_module(each.name, made)
        if self._config.num_experts:
            self._experts = AdaptedExperts(self._config, self._device)
            layer.get_submodule("mlp").add_module("experts", self._experts.layer)
        self.linear = torch.nn.Module()
        self.linear.config = described
        self.linear.model = torch.nn.Module()
        self.linear.model.layers = torch.nn.ModuleList([layer])
        if self._config.adapted_embeddings:
            self._open_embeddings(self.linear)
        return self.linear

    def _open_embeddings(self, model: Any) -> None:
        """The engine's embedding and head, whose rows it pads to whole blocks of a vocabulary."""
        module, dtype = engine_module(EMBEDDINGS), getattr(torch, self._config.dtype)
        sizes = dict(num_embeddings=VOCAB, embedding_dim=ADAPTED_INPUT, params_dtype=dtype)
        model.model.embed_tokens = module.VocabParallelEmbedding(**sizes)
        model.lm_head = module.ParallelLMHead(**sizes)
        embedding = adapted_layer.base_weight(*EMBEDDING.parts).T
        head = adapted_layer.base_weight(*HEAD.parts)
        for made, weights in ((model.model.embed_tokens, embedding), (model.lm_head, head)):
            held = torch.zeros_like(made.weight.data, device=self._device)
            held[:VOCAB] = weights.to(self._device)
            made.weight.data = held

    def _block(self, layer: Layer) -> str:
        """Of the decoder layer: where a linear layer lies."""
        return _block_of(layer, self._config)

    def _place(self, layer: Layer) -> Mapping[str, Any]:
        """Where a layer lies among ranks, as a model tells those of attention; the others look it
        up."""
        return _OF_ATTENTION if self._config.dp_size > 1 and layer.name != SHARED else {}

    def _base_weight(self, layer: Layer, part: Part) -> torch.Tensor:
        whole = adapted_layer.base_weight(part)
        mine = adapted_layer.share_of(part, self._config)
        return whole[mine] if layer.name == SHARED else whole

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """Attention's columns, then those of the linear layers."""
        x = demand_lookup(self.inputs, input_ids, "input_ids", FORWARD)
        if self._ranks is None:
            return self._own(x, input_ids, positions, forward_batch)
        start_layers(forward_batch)
        x = self._attention_stage.prepare(x, forward_batch)
        if len(x):
            found = self._own(x, input_ids, positions, forward_batch)
        else:  # models leave it out of a rank without tokens (qwen3_moe.py, Qwen3MoeDecoderLayer)
            columns = self._attended_columns + adapted_layer.adapted_columns(self._config)
            found = x.new_empty(0, columns)
        x = self._attention_stage.finish(x, forward_batch)
        gathered = self._shared_stage.prepare(x, forward_batch)
        out = self._layer(SHARED, gathered)
        demand_size(
            out, len(gathered), adapted_layer.shared_columns(self._config), _COMPUTED, FORWARD
        )
        self._given[: len(out)] = out
        return found

    def _own(
        self, x: torch.Tensor, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """What a rank computes for its own tokens."""
        found = [super().attend(input_ids, positions, forward_batch)]
        for each in adapted_layer.own_layers(self._config):
            if each is EMBEDDING:
                out = self.linear.model.embed_tokens(input_ids)  # type: ignore[union-attr,operator]
            elif each is HEAD:  # logits of the padded vocabulary are cut off
                out = self.linear.lm_head(x)[:, :VOCAB]  # type: ignore[union-attr,operator]
            else:
                out = self._layer(each.name, x)
            demand_size(out, len(x), each.columns, _COMPUTED, FORWARD)
            found.append(out)
        if self._experts is not None:
            wrapped = self._decoder_layer().mlp.experts
            found.append(self._experts.through(wrapped, x, input_ids))
        return torch.cat(found, dim=-1)

    def _decoder_layer(self) -> Any:
        assert self.linear is not None
        return self.linear.model.layers[0]  # type: ignore[index, union-attr]

    def _layer(self, name: str, x: torch.Tensor) -> torch.Tensor:
        (each,) = (layer for layer in LAYERS if layer.name == name)
        layer = self._decoder_layer().get_submodule(f"{self._block(each)}.{name}")
        out: torch.Tensor = layer(x)[0]
        return out


def described_layers(config: EngineConfig) -> Any:
    """The engine's description of the model with these layers: Llama's, or with experts
    Qwen2-MoE's."""
    from transformers import LlamaConfig, Qwen2MoeConfig

    gate = next(each for each in LAYERS if each.name == SHARED)
    width = gate.parts[0].columns
    kind: Any = Qwen2MoeConfig if config.num_experts else LlamaConfig
    more: Mapping[str, Any] = {"architectures": ["LlamaForCausalLM"]}
    if config.num_experts:
        more = {**described_experts(config), "shared_expert_intermediate_size": width}
    return kind(
        **more,
        hidden_size=ADAPTED_INPUT,
        intermediate_size=width,
        num_attention_heads=adapted_layer.HEADS,
        num_key_value_heads=adapted_layer.KV_HEADS,
        head_dim=adapted_layer.HEAD_WIDTH,
        num_hidden_layers=1,
        vocab_size=VOCAB,
    )


def _linear(module: Any, layer: Layer, **common: Any) -> Any:
    """The engine's layer of this name."""
    widths = [part.columns for part in layer.parts]
    if layer.name == "qkv_proj":
        return call_with_known(
            module.QKVParallelLinear,
            hidden_size=ADAPTED_INPUT,
            head_size=adapted_layer.HEAD_WIDTH,
            total_num_heads=adapted_layer.HEADS,
            total_num_kv_heads=adapted_layer.KV_HEADS,
            **common,
        )
    if layer.name == "gate_up_proj":
        return call_with_known(
            module.MergedColumnParallelLinear,
            input_size=ADAPTED_INPUT,
            output_sizes=widths,
            **common,
        )
    return call_with_known(
        module.RowParallelLinear, input_size=ADAPTED_INPUT, output_size=widths[0], **common
    )


def adapter_checkpoint(
    config: EngineConfig, adapter: int
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(PEFT's description, tensors by PEFT's names) of an adapter, as a server loads them.

    Raises:
        ValueError: the case has no adapter of that number.
    """
    if not 1 <= adapter <= most_adapters(config):
        raise ValueError(f"adapter {adapter} is not one of 1..{most_adapters(config)}")
    rank = adapted_layer.rank_of(adapter)
    changed = [
        (layer, part)
        for layer in adapted_layer.layers_of(config)
        for part in layer.parts
        if adapted_layer.has_weights(adapter, part)
    ]
    described = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": adapted_layer.scale_of(adapter) * rank,
        "target_modules": target_modules(config, [part for _, part in changed]),
        "base_model_name_or_path": "none",
        "bias": "none",
    }
    dtype = getattr(torch, config.dtype)
    tensors = {}
    for layer, part in changed:
        for which, weight in zip("AB", adapted_layer.adapter_weights(adapter, part), strict=True):
            name = _peft_name(layer, part, config).format(which)
            tensors[f"base_model.model.{name}"] = weight.to(dtype)
    for name, weight in (expert_tensors(config, adapter) if config.num_experts else {}).items():
        tensors[f"base_model.model.{name}"] = weight.to(dtype)
    return described, tensors


def target_modules(config: EngineConfig, parts: Iterable[Part]) -> list[str]:
    """The parts by name, and with experts the products of these."""
    named = [part.name for part in parts]
    return [*dict.fromkeys((*named, *(PRODUCTS if config.num_experts else ())))]


def _block_of(layer: Layer, config: EngineConfig) -> str:
    block = _BLOCKS[layer.name]
    return f"{block}.{_SHARED_EXPERT}" if config.num_experts and layer.name == SHARED else block


def _add_module(holder: torch.nn.Module, place: str, made: torch.nn.Module) -> None:
    """Put a module at a place below another one, with modules in between as needed."""
    above, _, name = place.rpartition(".")
    if above and not hasattr(holder, above):
        holder.add_module(above, torch.nn.Module())
    holder.get_submodule(above).add_module(name, made)


def _peft_name(layer: Layer, part: Part, config: EngineConfig) -> str:
    """Of a weight, with a place for which of the two it is."""
    if layer is EMBEDDING:
        return "model.embed_tokens.lora_embedding_{}"
    if layer is HEAD:
        return "lm_head.lora_{}.weight"
    return f"model.layers.0.{_block_of(layer, config)}.{part.name}.lora_{{}}.weight"
