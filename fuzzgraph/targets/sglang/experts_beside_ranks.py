"""What the engine's decoder layer does around its experts beside data-parallel ranks.

The tokens of all ranks are gathered before the experts, and their sums go back behind them. Which
collectives do it is decided by the engine's own code: by the boundary of the layer's stages from
0.5.21 on, by `LayerCommunicator` before. Both run as the decoder layers of Qwen3-MoE, DeepSeek and
GPT-OSS call them; norms pass on what they get, so that a row stays what `fuzzgraph.experts`
says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.fused_experts import DISPATCHER
from fuzzgraph.targets.sglang.stubs.tp_groups import gathered_apart

BOUNDARY = "sglang.srt.layers.layer_boundary"
_FACTORIES = f"{BOUNDARY}.factories"
_RESIDUALS = f"{BOUNDARY}.residual.batch"
_COMMUNICATOR = "sglang.srt.layers.communicator"
_CONTEXT = "sglang.srt.runtime_context"
_DATA_RANKS = "sglang.srt.layers.dp_attention"
_RETURNED_BY: Mapping[str, Mapping[str, str]] = MappingProxyType({
    exchange: dict.fromkeys(("boundary_reduction", "speculative_boundary_reduction"), reduction)
    for exchange, reduction in (
        ("scatterv", "rs+rsv"), ("gatherv", "rs+rsv"), ("scatter", "rs"), ("reduce", "ar"),
    )
})  # fmt: skip
"""What a server is told of how sums go back to their ranks, from 0.5.21 on."""


def exchange_arguments(config: EngineConfig) -> Mapping[str, str]:
    """Server arguments that say how sums go back to their ranks."""
    return _RETURNED_BY[config.expert_exchange] if config.dp_size > 1 else {}


def lacks_exchange(name: str) -> bool:
    """Whether this release has no such way of exchanging tokens.

    Args:
        name: see `EngineConfig.expert_exchange`.
    """
    lacks = {
        "gatherv": not hasattr(engine_module(_DATA_RANKS), "_USE_DP_GATHERV"),
        "scatter": not has_module(BOUNDARY),
        "reduce": not has_module(BOUNDARY),
    }
    return lacks.get(name, False)


@contextlib.contextmanager
def beside_ranks(config: EngineConfig) -> Iterator[None]:
    """As on a server with data-parallel ranks.

    Its environment asks for masks of their padded tokens (SGLANG_OPT_MASK_DP_PAD_MOE), and maybe
    for tokens gathered from ranks of various sizes (SGLANG_DP_USE_GATHERV); modules read it as they
    are imported.
    """
    if config.dp_size == 1:
        yield
        return
    ranks = engine_module(_DATA_RANKS)
    switches = {"_MASK_DP_PAD_MOE": True, "_USE_DP_GATHERV": config.expert_exchange == "gatherv"}
    with replaced_names([engine_module(DISPATCHER), ranks], switches), gathered_apart():
        yield


class Around(Protocol):
    """Runs what lies before and behind the experts."""

    def gather(self, rows: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """[gathered tokens, columns] the rows of all ranks, of this rank's [tokens, columns]."""

    def compute(self, block: Any, rows: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """What the block gives for the gathered rows."""

    def give_back(self, given: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """[tokens, columns] of this rank, of what its block gave for the gathered rows."""


def around_modules() -> tuple[str, ...]:
    """Modules that `open_around` needs."""
    if has_module(BOUNDARY):
        return BOUNDARY, _FACTORIES, _RESIDUALS
    return (_COMMUNICATOR,)


def open_around() -> Around:
    """What this release's decoder layers have around their experts."""
    return _Boundary() if has_module(BOUNDARY) else _Communicator()


class _PassOn(torch.nn.Module):
    """A norm that changes nothing, called as the engine's norms are."""

    def forward(self, rows: torch.Tensor, residual: torch.Tensor | None = None, *_: Any) -> Any:
        return rows if residual is None else (rows, residual)


def decoder_stages(*, sparse: bool) -> tuple[Any, Any, torch.nn.Module]:
    """The stages of one layer and their norm (sglang qwen3_moe.py Qwen3MoeDecoderLayer).

    Args:
        sparse: whether experts come behind attention, or a dense layer.
    """
    stages, norm = engine_module(BOUNDARY), _PassOn()
    behind = call_with_known(
        stages.declare_ffn, sparse=sparse, next_layer_sparse=sparse, next_sparse=sparse
    )
    declared = (stages.declare_attn(), norm), (behind, norm)
    if hasattr(stages, "make_stages"):  # up to 0.5.21
        attention, behind = stages.make_stages(*declared, terminal=True)
        return attention, behind, norm
    with engine_module(_FACTORIES).layer_stack():
        attention, behind = stages.append_stages(*declared)
    return attention, behind, norm


def start_layers(forward_batch: Any) -> None:
    """What a model does before its first layer."""
    engine_module(_RESIDUALS).start(forward_batch)


class _Boundary:
    """The stages of one layer."""

    def __init__(self) -> None:
        self._attention, self._experts, self._norm = decoder_stages(sparse=True)

    def gather(self, rows: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        start_layers(forward_batch)
        rows = self._attention.prepare(rows, forward_batch)
        rows = self._attention.finish(rows, forward_batch)
        found: torch.Tensor = self._experts.prepare(rows, forward_batch)
        return found

    def compute(self, block: Any, rows: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        with self._experts.exit(forward_batch) as self._exit:
            found: torch.Tensor = block(rows, forward_batch)
        return found

    def give_back(self, given: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        handed_on = self._exit.finish(given)
        residuals = engine_module(_RESIDUALS)
        last = getattr(residuals, "final_norm", None) or residuals.norm
        normed = last(handed_on, forward_batch, self._norm)
        found: torch.Tensor = normed[0] if isinstance(normed, tuple) else normed
        return found


class _Communicator:
    """The communicator of one layer (sglang qwen3_moe.py Qwen3MoeDecoderLayer up to 0.5.20)."""

    def __init__(self) -> None:
        module = engine_module(_COMMUNICATOR)
        modes = module.LayerScatterModes.init_new(
            layer_id=0,
            num_layers=1,
            is_layer_sparse=True,
            is_previous_layer_sparse=True,
            is_next_layer_sparse=True,
        )
        norm = _PassOn()
        self._communicator = call_with_known(
            module.LayerCommunicator,
            layer_scatter_modes=modes,
            input_layernorm=norm,
            post_attention_layernorm=norm,
            allow_reduce_scatter=True,
            is_last_layer=True,
        )

    def gather(self, rows: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        found, self._residual = self._communicator.prepare_mlp(
            rows, torch.zeros_like(rows), forward_batch
        )
        gathered: torch.Tensor = found
        return gathered

    def compute(self, block: Any, rows: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        scatters = self._communicator.should_use_reduce_scatter(forward_batch)
        with _says(mlp_reduce_scatter=scatters, fuse_mlp_allreduce=False):
            found: torch.Tensor = call_with_known(
                block.forward,
                hidden_states=rows,
                forward_batch=forward_batch,
                should_allreduce_fusion=False,
                use_reduce_scatter=scatters,
            )
        return found

    def give_back(self, given: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        found: torch.Tensor = self._communicator.postprocess_layer(
            given, self._residual, forward_batch
        )[0]
        return found


@contextlib.contextmanager
def _says(**flags: bool) -> Any:
    """What the layer tells its block, which takes it as arguments where the release has no flags
    of a forward."""
    context: Any = engine_module(_CONTEXT) if has_module(_CONTEXT) else None
    if not hasattr(context, "get_forward"):
        yield
        return
    with context.get_forward().scoped(**flags):
        yield
