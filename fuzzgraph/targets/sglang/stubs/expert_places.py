"""Where experts lie on a server with copies of some (EPLB), as its arguments say it.

Real is what the engine makes of the arguments; stood in for is the model's description, which it
would look up by the name of a checkpoint, and the manager that moves experts while a server runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.experts.placement import expert_at
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module

PLACES = "sglang.srt.eplb.expert_location"
_MODEL = "sglang.srt.models.deepseek_v2"


def place_arguments(config: EngineConfig) -> Mapping[str, Any]:
    """Arguments of a server with copies; they take turns from row to row."""
    if not config.expert_copies:
        return {}
    return {
        "enable_eplb": True,
        "ep_num_redundant_experts": config.expert_copies,
        "ep_dispatch_algorithm": "dynamic",
        "init_expert_location": json.dumps({"physical_to_logical_map": [expert_at(config)]}),
    }


def places_as_loaded(config: EngineConfig, described: Any) -> Any:
    """What a server with copies keeps of the places, by the arguments of the process.

    Args:
        described: the engine's description of the model.
    """
    module = engine_module(PLACES)
    model = engine_module(_MODEL).DeepseekV3ForCausalLM
    found = model.get_model_config_for_expert_location(described)
    asked = {"from_model_config": staticmethod(lambda model_config: found)}
    with replaced_names([module.ModelConfigForExpertLocation], asked):
        return module.compute_initial_expert_location_metadata(None, config.ep_rank)


def keep_places(kept: Any) -> None:
    """Make these the places of the process."""
    engine_module(PLACES).set_global_expert_location_metadata(kept, allow_overwrite=True)
