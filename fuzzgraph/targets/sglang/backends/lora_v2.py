"""`--lora-backend triton_v2`: linear layers with adapters, by one map of tokens to slots.

From 0.5.23 on. A kernel writes the slot of each token; routes, which a graph makes anew in each
replay, sort tokens by slot; plans, read from tables by the device's architecture, choose kernels
and how A and B run beside the base layer. Both parts run one after the other here, as the engine
has it on a device without streams.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import PaddingRule
from fuzzgraph.targets.offline.cuda_on_cpu import (
    DEVICE,
    STREAMS,
    cuda_on_cpu,
    tensors_claim_cuda,
)
from fuzzgraph.targets.sglang.backends.lora import LoraSession, LoraTarget
from fuzzgraph.targets.sglang.excuses.decode import EXCUSES
from fuzzgraph.targets.sglang.release import SGLANG, demand_release, engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_BACKEND = "sglang.srt.lora.backend.triton_v2_backend"
_RUNNER = "sglang.srt.lora.dense.runner"
_EXPAND = "sglang.kernels.ops.lora.common.lora_b"
_EXPERTS = "sglang.srt.lora.moe.runner"
_OF_EXPERTS = "bfloat16"
"""The only dtype that this runner of experts takes (lora/moe/runner.py, `_weight_family`)."""
_HOPPER = "sm90"
"""Whose plans are chosen, as `torch.cuda` names a Hopper GPU to the engine's other kernels."""

_GPU = torch.device("cuda", 0)
"""Made here: inside `cuda_on_cpu` the name means the CPU."""


class LoraV2Session(LoraSession):
    """One manager of adapters and one decode runner with its captured graphs."""

    _experts = "lora_triton"

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        return cuda_on_cpu({**DEVICE, **STREAMS})

    def _open_backend(self, runner: ModelRunner) -> Any:
        engine_module(_EXPAND)._GEOMETRY.clear()  # tables that a server makes once
        return super()._open_backend(runner)

    @property
    def rows_read_whole(self) -> tuple[torch.Tensor, ...]:
        """The map of a graph: the kernel gets its live part, and clears the rest of it."""
        return (self._read(in_graph=True).token_slots,)

    def _of_padded_rows(self, config: EngineConfig) -> PaddingRule:
        """The kernel clears the map behind the live tokens."""
        return PaddingRule("fill", 0)

    def _read(self, *, in_graph: bool) -> Any:
        backend = self._manager.lora_backend
        return backend.decode_cuda_graph_batch_info if in_graph else backend.batch_info

    def _held(self, info: Any) -> dict[str, torch.Tensor]:
        return {
            "lora_weight_indices": info.weight_indices,
            "lora_ranks": info.lora_ranks,
            "lora_scalings": info.scalings,
            "lora_seg_indptr": info.seg_indptr,
            "lora_token_slots": info.token_slots,
        }

    def _ranks_of_tokens(self, info: Any, tokens: int) -> torch.Tensor:
        handed = self._manager.lora_backend.runner._token_slots  # none for an idle batch
        slots = (info.token_slots if handed is None else handed)[:tokens].long()
        ranks = info.lora_ranks.long()[slots.clamp(min=0)]
        return torch.where(slots < 0, 0, ranks)


class LoraV2Target(LoraTarget):
    """Layers with adapters on the sglang release that this process holds."""

    session = LoraV2Session
    excuses = EXCUSES
    also_stood_in_for = (*LoraTarget.also_stood_in_for, "streams beside the base layer")

    def __init__(self, name: str, mode: Literal["decode", "target_verify"] = "decode") -> None:
        super().__init__(name, "triton_v2", mode)
        self.capabilities = self.capabilities.replace(
            dtypes=(*self.capabilities.dtypes, _OF_EXPERTS),
            lora_experts_dtype=_OF_EXPERTS,
            lora_use_virtual_experts=False,
        )

    def load(self) -> None:
        demand_release((0, 5, 23), "has no layers by triton_v2", self.name)
        super().load()
        with cuda_on_cpu({**DEVICE, **STREAMS}):
            SGLANG.load(_BACKEND, _EXPERTS)
        if not torch.cuda.is_available():
            _choose_as_on_a_gpu()


def _choose_as_on_a_gpu() -> None:
    """Where code asks for the device of tensors, to choose plans and kernels, it hears of a GPU."""
    backend, runner = engine_module(_BACKEND), engine_module(_RUNNER)
    if isinstance(backend.DenseLoraRunner, functools.partial):
        return
    backend.DenseLoraRunner = functools.partial(backend.DenseLoraRunner, architecture=_HOPPER)
    backend._compute_token_lora_mapping = tensors_claim_cuda(
        backend._compute_token_lora_mapping, device=True
    )
    experts = engine_module(_EXPERTS).MoeLoraRunner
    experts.from_layer = tensors_claim_cuda(experts.from_layer, device=True)
    geometry = runner.slice_geometry
    for module in (runner, engine_module(_EXPAND)):
        module.slice_geometry = functools.partial(_on_a_gpu, geometry)


def _on_a_gpu(geometry: Callable[..., Any], offsets: Any, block: int, _: Any, **more: Any) -> Any:
    return geometry(offsets, block, _GPU, **more)
