"""The engine's own manager of LoRA adapters over a model, with the adapters of a case loaded."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.adapted_layer import HIGHEST_RANK, layers_of
from fuzzgraph.case import EngineConfig
from fuzzgraph.case.adapters import most_adapters, pinned_adapters
from fuzzgraph.errors import EngineError
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.adapted_model import (
    AdaptedModel,
    adapter_checkpoint,
    described_layers,
    target_modules,
)
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.adapter_ranks import name_of
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

MANAGER = "sglang.srt.lora.lora_manager"
_REFS = "sglang.srt.lora.lora_registry"
LOADING = (_REFS, MANAGER)
"""Modules that `load_adapters` needs."""


def load_adapters(
    config: EngineConfig, runner: ModelRunner, model: AdaptedModel, kernels: str
) -> Any:
    """The engine's manager with every adapter of the case loaded from memory, as
    `--lora-paths` has them loaded from files."""
    described = described_layers(config)
    manager = call_with_known(
        engine_module(MANAGER).LoRAManager,
        base_model=model.open_layers(described),
        base_hf_config=described,
        max_loras_per_batch=most_adapters(config) + 1
        if config.draft_adapter
        else config.max_loras + 1,
        load_config=None,
        dtype=runner.dtype,
        server_args=runner.server_args,
        lora_backend=kernels,
        tp_size=config.dp_size,
        tp_rank=config.dp_rank,
        max_lora_rank=HIGHEST_RANK,
        target_modules=target_modules(
            config, (part for layer in layers_of(config) for part in layer.parts)
        ),
        lora_paths=None,
    )
    for module in manager.base_model.modules():
        if hasattr(module, "output_offset_cpu"):
            module.output_offset_cpu = _PinnedList(module.output_offset_cpu)
    reference = engine_module(_REFS).LoRARef
    for adapter in range(1, most_adapters(config) + 1):
        said, tensors = adapter_checkpoint(config, adapter)
        name = name_of(adapter)
        named = reference(
            lora_id=name,
            lora_name=name,
            lora_path=f"/{name}",
            pinned=adapter in pinned_adapters(config),
        )
        done = manager.load_lora_adapter_from_tensors(named, tensors, said)
        if not done.success:
            raise EngineError(f"the engine refuses {name}: {done.error_message}")
    return manager


class _PinnedList:
    """A tensor in pinned memory whose numbers a capture may list, as a device lets it; the recorder
    cannot tell that memory from the device's."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def tolist(self) -> Any:
        with torch._C.DisableTorchFunction():
            return self._tensor.tolist()
