"""The real proposer of EAGLE beside the V1 runner: its buffers, its graphs, its padded batches.

A step of the case is one draft: the runner computes a token of each request and samples, and its
proposer runs the draft model as many times as the case has steps. Graphs break at attention.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Field, Observation, PaddingRule
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.vllm.configuration import NOT_COMPILED
from fuzzgraph.targets.vllm.draft_models import DraftedFor, DraftLayer, drafted_outputs
from fuzzgraph.targets.vllm.pages_of_tokens import PagesOfTokens
from fuzzgraph.targets.vllm.piecewise_session import BrokenByTheEngine, PiecewiseSession
from fuzzgraph.targets.vllm.served_drafts import ServedDrafts
from fuzzgraph.world import Batch

_PROPOSER = "vLLM v1/spec_decode/llm_base_proposer.py"
_FIRST = f"{_PROPOSER} set_inputs_first_pass: the sampled token in the place of each row's last"
_SLOTS = (
    f"{_PROPOSER} _get_slot_mapping and spec_decode/utils.py, eagle_step_update_slot_mapping:"
    " PADDING_SLOT_ID behind the live rows"
)


def _fields() -> tuple[Field, ...]:
    return (
        Field("input_ids", "requests", "nothing", common.FREE, source=_FIRST),
        Field("positions", "requests", "nothing", common.FREE, source=_FIRST),
        Field("slot_mapping", "tokens", "slot", PaddingRule("skip", -1), source=_SLOTS),
    )


class EagleSession(PagesOfTokens, PiecewiseSession):
    """One runner with a proposer, whose draft model is cut as the compiler's backend cuts it.

    A graph is one forward of the draft model.
    """

    model_class = DraftedFor
    served_kind = ServedDrafts

    def __init__(
        self, config: EngineConfig, graphs: GraphEngine, backend: str, *device: Any
    ) -> None:
        DraftLayer.opening = config
        self._drafted: Any = None
        self._passes: list[dict[str, torch.Tensor]] = []
        super().__init__(config, graphs, backend, *device)

    def _runner_fields(self) -> tuple[Field, ...]:
        return _fields()

    def _watch_handover(self, graphs: GraphEngine) -> None:
        """What is handed over between two models is in no word of the oracle."""

    @property
    def _draft_model(self) -> DraftLayer:
        model = self.runner.drafter.model
        found: DraftLayer = model if isinstance(model, DraftLayer) else model.unwrap()
        return found

    def _spy(self) -> None:
        super()._spy()
        drafter = self.runner.drafter
        dispatch, slots = drafter.cudagraph_dispatcher.dispatch, drafter._get_slot_mapping

        def dispatched(*args: Any, **kwargs: Any) -> Any:
            self._drafted = dispatch(*args, **kwargs)
            self._cuda_graphs.begin_forward(self._drafted[1].num_tokens)
            return self._drafted

        def mapped(*args: Any, **kwargs: Any) -> Any:
            made = slots(*args, **kwargs)
            self._passes.append(self._inputs_of_pass(next(iter(made.values()))))
            return made

        drafter.cudagraph_dispatcher.dispatch, drafter._get_slot_mapping = dispatched, mapped

    def _inputs_of_pass(self, slots: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copies of what a forward of the draft model starts from."""
        drafter, rows = self.runner.drafter, len(slots)
        return {
            "input_ids": drafter.input_ids[:rows].clone(),
            "positions": drafter.positions[:rows].clone(),
            "slot_mapping": slots.clone(),
        }

    # Graphs of the draft model

    def graph_key(self) -> Hashable:
        key: Hashable = self._drafted[1]
        return key

    def _read_by_pieces(self) -> dict[str, torch.Tensor]:
        drafter = self.runner.drafter
        return {
            "input_ids": drafter.input_ids,
            "positions": drafter.positions,
            "slot_mapping": drafter._slot_mapping_buffer,
        }

    def _in_pieces(self) -> bool:
        return self._drafted is not None and self._drafted[0].name == "PIECEWISE"

    def _took_no_graph(self) -> bool:
        return not self._in_pieces()

    def _without_graphs(self) -> contextlib.AbstractContextManager[None]:
        dispatchers = self.runner.cudagraph_dispatcher, self.runner.drafter.cudagraph_dispatcher
        return replaced_names(dispatchers, {"keys_initialized": False})

    # A step

    def _step(self, batch: Batch) -> None:
        self._passes.clear()
        self._draft_model.sampled_from.clear()
        super()._step(batch)

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        rows = batch.raw_bs if self.ran_eagerly else int(self._drafted[1].num_tokens)
        return rows, rows * self._config.spec_steps

    def live_tokens(self, batch: Batch) -> int:
        return len(batch.slot_mapping)

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        seen.shown_tokens, seen.told = batch.num_tokens, {}
        return seen

    def used_buffers(self, batch: Batch, rows: int, tokens: int) -> dict[str, torch.Tensor]:
        if not self._passes:
            return {}
        first = self._passes[0]
        slots = torch.stack([each["slot_mapping"] for each in self._passes], dim=1)
        return {**first, "slot_mapping": slots.flatten()}

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        return self.used_buffers(batch, 0, 0) if self.ran_eagerly else {}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return () if mode == "idle" else ("attention", "hidden_states", "draft_tokens")

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        """By row, then step."""
        sampled = self._draft_model.sampled_from
        if not sampled:
            return {}
        kept = torch.stack(sampled, dim=1)
        return drafted_outputs(kept, self.runner._draft_token_ids, self._config)


class EagleBreakableSession(BrokenByTheEngine, EagleSession):
    """The same with graphs that the engine breaks itself while it captures."""

    compilation_mode = NOT_COMPILED
