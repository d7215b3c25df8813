"""Target `sglang-draft-prefill`: prefill graphs of a draft model.

EAGLE's worker has the draft model compute each prompt behind the target model, and captures that
where prefill graphs are breakable (sglang eagle_worker_v2.py, `init_cuda_graphs`). The target's
hidden states lie in a static buffer of the runner. A config says whether the model joins them with
its embeddings inside of the body that a graph holds, or outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.content import content_for, hidden_width
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference import LAST_ATTENTION
from fuzzgraph.targets.sglang.attention_model import hidden_in
from fuzzgraph.targets.sglang.drafted_prompts_model import (
    INNER_MODELS,
    OUTER_MODELS,
    joining_model,
)
from fuzzgraph.targets.sglang.forward_batch.decode import given
from fuzzgraph.targets.sglang.release import demand_release, engine_module
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import BREAKABLE
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

__all__ = ["DraftPrefillTarget", "asked_of_a_draft"]

_INFO = "sglang.srt.model_executor.forward_batch_info"
_EAGLE = "sglang.srt.speculative.eagle_info"


def asked_of_a_draft(batch: Batch, runner: ModelRunner) -> Mapping[str, Any]:
    """What EAGLE's worker adds to a prompt for its draft model (sglang eagle_worker_v2.py,
    `_draft_extend_for_prefill`)."""
    content = content_for(runner.configuration.config)
    said = {
        "hidden_states": content.hidden_states(batch.input_ids, batch.positions).to(runner.device),
        "num_tokens_per_req": 1,
        "num_tokens_for_logprob_per_req": 1,
    }
    return {
        "capture_hidden_mode": engine_module(_INFO).CaptureHiddenMode.LAST,
        "spec_algorithm": runner.spec_algorithm,
        "spec_info": given(engine_module(_EAGLE).EagleDraftExtendInput, said),
    }


class DraftPrefillSession(PrefillSession):
    """An opened runner of a draft model on Triton attention, with one layer."""

    drafts = True
    model = staticmethod(joining_model)  # type: ignore[assignment]

    def _open_backend(self, runner: ModelRunner) -> Any:
        runner.model_config.spec_hidden_size = hidden_width(self._config)
        return super()._open_backend(runner)

    def _asked(self, batch: Batch) -> Mapping[str, Any]:
        return asked_of_a_draft(batch, self._model_runner)

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return (*super().promised_outputs(mode), LAST_ATTENTION)

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        """The body's output, and the row of each request that a draft begins with."""
        last = hidden_in(outputs, self._config)["attention"]
        return {**super().named_outputs(outputs), LAST_ATTENTION: last}


class DraftPrefillTarget(PrefillTarget):
    """Prefill graphs of a draft model on the sglang release that this process holds."""

    attends_alone = False

    def __init__(self, name: str) -> None:
        super().__init__(name, BREAKABLE.name)
        self.about = "breakable prefill graphs of a draft model, Triton attention"
        self.also_stood_in_for = (
            *self.also_stood_in_for,
            "what a draft model has beside attention and hidden states",
        )
        self.capabilities = self.capabilities.replace(
            modes=("prefill",),
            max_dp_size=1,
            max_tp_size=1,
            row_mixings=("none",),
            images=False,
            outer_joins=True,
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DraftPrefillSession:
        return DraftPrefillSession(config, graphs, self._kind)

    def modules(self) -> tuple[str, ...]:
        demand_release((0, 5, 16), "captures no prompts of draft models by default,", self.name)
        return *super().modules(), INNER_MODELS, OUTER_MODELS
