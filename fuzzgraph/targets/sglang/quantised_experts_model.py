"""Experts of a checkpoint in FP8 or INT8, put into the engine's layer as its loader leaves them.

What the engine makes of them behind its loader is its own: `process_weights_after_loading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fuzzgraph.experts import quantised
from fuzzgraph.experts.quantised import Quantised


def load_quantised(layer: Any, kind: str, mine: Iterable[int]) -> None:
    """Fill the engine's layer with the weights of these experts.

    Args:
        layer: the engine's layer of experts, as it was created for such a checkpoint.
        kind: see `EngineConfig.expert_quantisation`.
    """
    pairs = [quantised.gates_and_ups(kind, expert) for expert in mine]
    downs = [quantised.down(kind, expert) for expert in mine]
    fill(layer.w13_weight, torch.stack([_joined(pair, torch.cat, "weight") for pair in pairs]))
    fill(layer.w2_weight, torch.stack([each.weight for each in downs]))
    scale = "weight_scale_inv" if kind.endswith("blocks") else "weight_scale"
    join = torch.stack if pairs[0][0].scale.dim() == 0 else torch.cat
    fill(
        getattr(layer, f"w13_{scale}"),
        torch.stack([_joined(pair, join, "scale") for pair in pairs]),
    )
    fill(getattr(layer, f"w2_{scale}"), torch.stack([each.scale for each in downs]))
    if kind == "fp8_tensors":
        for name, product in (("w13", "gate"), ("w2", "down")):
            places = range(len(downs))
            scales = [quantised.input_scale(product, place) for place in places]
            fill(getattr(layer, f"{name}_input_scale"), torch.tensor(scales))
    layer.quant_method.process_weights_after_loading(layer)


def _joined(
    pair: tuple[Quantised, Quantised], join: Callable[..., torch.Tensor], part: str
) -> torch.Tensor:
    """Of W1 and W3 what stands for both; bytes, for numbers of FP8 cannot be joined everywhere."""
    first, second = (getattr(each, part) for each in pair)
    if first.element_size() > 1:
        return join((first, second))
    return join((first.view(torch.uint8), second.view(torch.uint8))).view(first.dtype)


def fill(parameter: torch.nn.Parameter, weights: torch.Tensor) -> None:
    if parameter.shape != weights.shape:
        raise ValueError(f"the engine has {list(parameter.shape)} for {list(weights.shape)}")
    parameter.data.copy_(weights)
