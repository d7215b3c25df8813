"""The engine's recorder of how many tokens each expert has, as a server runs it for EPLB."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.experts.placement import places
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.fused_experts import RECORDER
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner


def open_recorder(config: EngineConfig, runner: ModelRunner) -> Any:
    """The engine's own, recording, over experts that lie where their numbers say."""
    placed = Stub(
        num_layers=1,
        num_physical_experts=places(config),
        num_logical_experts=config.num_experts,
        num_local_physical_experts=places(config) // config.ep_size,
        ep_size=config.ep_size,
    )
    made = call_with_known(
        engine_module(RECORDER).ExpertDistributionRecorder.init_new,
        server_args=runner.server_args,
        expert_location_metadata=placed,
        rank=config.ep_rank,
    )
    made.start_record()
    return made


def use_recorder(recorder: Any) -> None:
    """Make it the process's, which the engine's modules look up."""
    engine_module(RECORDER).set_global_expert_distribution_recorder(recorder)


def kept_counts(recorder: Any) -> torch.Tensor:
    """int64 [places] what it keeps of the last pass, which has one layer."""
    kept = recorder._accumulator._global_physical_count_of_buffered_step
    found: torch.Tensor = kept.get_all()[0, 0].long()
    return found
