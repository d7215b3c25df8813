"""`--attention-backend aiter` under EAGLE's drafts: `AiterMultiStepDraftBackend`.

By a CSR a step sees its row's past and what its branch has drafted so far. Unified attention gets a
table of the same slots' pages, and the lengths of the past: no step sees a draft (`draft_reach`).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.aiter import AITER
from fuzzgraph.targets.sglang.backends.multi_step_draft import MultiStepDraftTarget, drafts_on
from fuzzgraph.targets.sglang.backends.stepwise_draft import StepwiseBackend, StepwiseDraftSession
from fuzzgraph.targets.sglang.stubs.draft_worker import runs_draft_loop
from fuzzgraph.targets.sglang.stubs.workspaces import keep_workspaces_small

_STEPS = StepwiseBackend(AITER, ("AiterMultiStepDraftBackend",))


def _refused_reach(config: EngineConfig) -> str | None:
    reach = "past" if config.page_map == "page_table" else "drafts"
    if config.draft_reach == reach:
        return None
    return f"draft_reach={config.draft_reach!r}: steps by page_map={config.page_map!r} see {reach}"


def _refused_branches(config: EngineConfig) -> str | None:
    """Several branches share pages, or kernels are told of one query for each request (see
    reports/findings/sglang-aiter-draft-branches.md)."""
    if config.spec_topk == 1:
        return None
    with_several = f"with spec_topk={config.spec_topk}"
    if config.page_size > 1:
        return f"page_size={config.page_size} is not driven {with_several}, only 1"
    if config.attention == "mla" or config.page_map == "page_table":
        kind = f"attention={config.attention!r} and page_map={config.page_map!r}"
        return f"{kind} {with_several}: such a graph attends for one branch of each request"
    return None


def _refused_context(config: EngineConfig) -> str | None:
    """The lists of a graph have room for its rows' contexts (sglang spec_utils.py
    draft_kv_indices_buffer_width), and rows of the capture may be longer than a tiny one."""
    captured = max(config.spec_steps + 2, config.draft_tokens)
    if config.max_context_len < captured:
        return (
            f"max_context_len={config.max_context_len} is not driven, only {captured} and more: "
            "graphs are captured for rows of so many tokens"
        )
    return None


class AiterDraftTarget(MultiStepDraftTarget):
    """EAGLE's draft runner on AITER."""

    def __init__(self, name: str) -> None:
        super().__init__(name, AITER)
        decodes = AITER.target(name, "decode")
        self.any_page_size = decodes.any_page_size
        self.about = "AITER's attention on each EAGLE draft step"
        self.also_stood_in_for = (*AITER.stood_in_for, "what samples drafts")
        own = self.capabilities
        self.capabilities = drafts_on(decodes.capabilities, own).replace(
            max_spec_topk=own.max_spec_topk,
            draft_branches=own.draft_branches,
            draft_reaches=("drafts", "past"),
        )

    def refused(self, config: EngineConfig) -> str | None:
        refused = _refused_reach(config) or _refused_branches(config) or _refused_context(config)
        return refused or super().refused(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> AiterDraftSession:
        return AiterDraftSession(config, graphs)

    def load(self) -> None:
        keep_workspaces_small()
        super().load()


class AiterDraftSession(StepwiseDraftSession):
    """One draft runner and AITER's backend of each step."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        super().__init__(config, graphs, _STEPS)

    def _fill(self, config: EngineConfig) -> int:
        """As many as the server drafts (sglang aiter_backend.py
        get_cuda_graph_seq_len_fill_value)."""
        chain = config.spec_topk == 1 and runs_draft_loop()
        return config.spec_steps + 2 if chain else config.draft_tokens

    def fields_of_step(self, name: str, step: int) -> tuple[Field, ...]:
        """A draft has a query for each branch at each step."""
        return tuple(
            replace(field, repeats=field.repeats.replace("new_lens", "one_each"))
            for field in super().fields_of_step(name, step)
        )

    @property
    def rows_read_whole(self) -> tuple[torch.Tensor, ...]:
        """Each step's list of slots: a graph gets as much of it as the lengths at capture need,
        and replays for longer ones (sglang AiterMultiStepDraftBackend.common_template)."""
        return tuple(getattr(self.backend, "cuda_graph_kv_indices", ()))

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        found = super()._metadata_tensors(size)
        if size is not None:
            for step, slots in enumerate(self.backend.cuda_graph_kv_indices[:-1]):
                if f"step{step}_kv_indices" in found:
                    found[f"step{step}_kv_indices"] = slots
        return found
