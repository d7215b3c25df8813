"""A model of one recurrent layer of the engine, with known weights.

What a layer is given is embedded as one column each, so that its own projections give known
numbers exactly. Its gate multiplies by 32, and its output projection divides by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.content import STATE_WIDTH
from fuzzgraph.targets.offline.demands import demand_instance, demand_rows
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.attention_model import FORWARD, OneLayer
from fuzzgraph.targets.vllm.release import engine_module

STATES = "vllm.model_executor.layers.mamba.mamba_utils"


class OneRecurrentLayer(OneLayer):
    """Tokens, and the engine's layer over them."""

    is_attention_free = True
    has_inner_state = True
    computed = "what the layer computed"
    """How a message names what the layer gives."""
    embed: torch.Tensor
    """What each token is embedded as, and each position where the layer is told of them."""
    mixer: Any
    """The engine's layer."""

    def _known_weights(self) -> Mapping[torch.Tensor, torch.Tensor]:
        """A weight of the layer -> its values."""
        raise NotImplementedError

    def _compute(self, input_ids: torch.Tensor, positions: torch.Tensor) -> Any:
        """What the layer gives: [tokens, columns], of which the first `STATE_WIDTH` are judged."""
        raise NotImplementedError

    def load_known_weights(self) -> None:
        """What the dummy loader filled at random."""
        with torch.no_grad():
            for weight, values in self._known_weights().items():
                weight.copy_(values)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """The outputs where a model would give hidden states."""
        demand_rows(input_ids, None, "input_ids", FORWARD)
        out: torch.Tensor = self._compute(input_ids, positions)
        demand_instance(out, torch.Tensor, self.computed, FORWARD)
        return out[:, :STATE_WIDTH]


class HybridLayer(OneRecurrentLayer):
    """The same in a model that tells the engine's configuration which states its layer keeps."""

    is_hybrid = True
    rule: str
    """Begins the names of what the engine reckons these states by."""

    @classmethod
    def _sizes(cls, vllm_config: Any) -> Mapping[str, int]:
        """What the engine reckons their shapes from."""
        raise NotImplementedError

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> tuple[torch.dtype, ...]:
        cache = vllm_config.cache_config
        reckon = getattr(engine_module(STATES).MambaStateDtypeCalculator, f"{cls.rule}_state_dtype")
        dtypes: tuple[torch.dtype, ...] = call_with_known(
            reckon,
            model_dtype=vllm_config.model_config.dtype,
            mamba_cache_dtype=cache.mamba_cache_dtype,
            mamba_ssm_cache_dtype=cache.mamba_ssm_cache_dtype,
        )
        return dtypes

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> tuple[tuple[int, ...], ...]:
        reckon = getattr(engine_module(STATES).MambaStateShapeCalculator, f"{cls.rule}_state_shape")
        shapes: tuple[tuple[int, ...], ...] = reckon(**cls._sizes(vllm_config))
        return shapes

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        states = engine_module(STATES).MambaStateCopyFuncCalculator
        functions: tuple[Any, ...] = getattr(states, f"{cls.rule}_state_copy_func")()
        return functions
