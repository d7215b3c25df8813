"""The real speculator of EAGLE in the V2 runner: its buffers, its kernels, its graphs.

A step of the case is one draft. The runner verifies the drafts of the step before it, or computes
the end of a prompt, and samples; its speculator then runs the draft model over all those tokens and
samples behind the last one that stays (one graph), and token by token from there on (another).
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.content import next_token
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_graph import RecordedCudaGraph
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.vllm.draft_models import drafted_outputs
from fuzzgraph.targets.vllm.pages_of_tokens import PagesOfTokens
from fuzzgraph.targets.vllm.served_verified_drafts import ServedVerifiedDrafts
from fuzzgraph.targets.vllm.v2_draft_models import VERIFIED, DraftLayerInGraphs, VerifiedFor
from fuzzgraph.targets.vllm.v2_eagle_fields import (
    GRAPHS_SOURCE,
    shown_of_first,
    speculator_fields,
    told_of_first,
)
from fuzzgraph.targets.vllm.v2_session import Dispatched, knows_prompts
from fuzzgraph.targets.vllm.v2_verify import V2VerifySession
from fuzzgraph.world import Batch

_NOT_UNIFORM = f"{GRAPHS_SOURCE}; a row computes the end of a prompt"


class V2EagleSession(PagesOfTokens, V2VerifySession):
    """One V2 runner with a speculator; a graph is that of the forwards behind the first."""

    model_class = VerifiedFor
    served_kind = ServedVerifiedDrafts
    served: ServedVerifiedDrafts
    cudagraph_mode = "FULL_DECODE_ONLY"
    drafting = VERIFIED

    def __init__(self, config: EngineConfig, graphs: GraphEngine, *backend: Any) -> None:
        DraftLayerInGraphs.opening = config
        self._first: dict[str, torch.Tensor] = {}
        self._next: dict[str, torch.Tensor] = {}
        self._chosen: dict[str, Dispatched] = {}
        self._with_graphs = True
        super().__init__(config, graphs, *backend)

    def _runner_fields(self) -> tuple[Field, ...]:
        return speculator_fields()

    def _watch_handover(self, graphs: GraphEngine) -> None:
        """What is handed over between two models is in no word of the oracle."""
        self._watches_begin = []

    # What was chosen, and for which inputs

    @property
    def _managers(self) -> dict[str, Any]:
        """Of the speculator's graphs, by the forwards that they hold."""
        speculator = self.runner.speculator
        found = {
            "first": speculator.prefill_cudagraph_manager,
            "next": speculator.decode_cudagraph_manager,
        }
        return found if self._config.spec_steps > 1 else {"first": found["first"]}

    def _spy(self) -> None:
        super()._spy()
        taken = {"first": self._take_first, "next": self._take_next}
        for name, manager in self._managers.items():
            self._note(name, manager, taken[name])

    def _note(self, name: str, manager: Any, take: Any) -> None:
        dispatch = manager.dispatch

        def dispatched(*args: Any, **kwargs: Any) -> Any:
            chosen = dispatch(*args, **kwargs)
            graph = manager.graphs.get(chosen)
            found = Dispatched(chosen.num_reqs or 0, chosen.num_tokens, graph)
            self._chosen[name] = found
            self._graph = graph or self._graph
            take(found)
            return chosen

        # Just before, the speculator has prepared the inputs of these forwards.
        manager.dispatch = dispatched

    def _take_first(self, chosen: Dispatched) -> None:
        """Copies of what the forward over several tokens of a row starts from."""
        speculator, tokens = self.runner.speculator, chosen.tokens
        self._first = {
            "input_ids": speculator.input_buffers.input_ids[:tokens].clone(),
            "positions": speculator.input_buffers.positions[:tokens].clone(),
            "slots": self.runner.block_tables.slot_mappings[0, :tokens].clone(),
            "rows": speculator.last_token_indices[: chosen.rows].clone(),
            "offsets": speculator.input_buffers.query_start_loc.clone(),
        }

    def _take_next(self, chosen: Dispatched) -> None:
        """Copies of what the forwards behind it start from."""
        buffers, rows = self.runner.speculator.input_buffers, chosen.rows
        self._next = {
            "input_ids": buffers.input_ids[:rows].clone(),
            "positions": buffers.positions[:rows].clone(),
            "seq_lens": buffers.seq_lens[:rows].clone(),
            "query_start_loc": buffers.query_start_loc[: rows + 1].clone(),
            "block_table": self.runner.block_tables.input_block_tables[0][:rows].clone(),
        }

    # Graphs

    def _remember_captured(self, graph: RecordedCudaGraph) -> None:
        self._graph = graph
        self.remember(graph)
        self._read[graph] = {}

    def static_buffers(self, key: Hashable) -> Mapping[str, torch.Tensor]:
        speculator, tables = self.runner.speculator, self.runner.block_tables
        buffers = speculator.input_buffers
        return {
            "input_ids": buffers.input_ids,
            "positions": buffers.positions,
            "seq_lens": buffers.seq_lens,
            "query_start_loc": buffers.query_start_loc,
            "hidden_states": speculator.hidden_states,
            "last_token_indices": speculator.last_token_indices,
            "slot_mapping": tables.slot_mappings,
            "block_table": tables.input_block_tables[0],
        }

    @property
    def _last(self) -> Dispatched:
        """What was chosen for the last forwards of the draft."""
        return self._chosen["next" if "next" in self._managers else "first"]

    def _took_no_graph(self) -> bool:
        return self._last.graph is None

    def _without_graphs(self) -> contextlib.AbstractContextManager[None]:
        managers = self.runner.cudagraph_manager, *self._managers.values()
        nothing: dict[Any, Any] = {}
        return replaced_names(managers, {"_graphs_captured": False, "graphs": nothing})

    def declined(self, batch: Batch) -> str:
        return "" if "next" in self._managers or self._uniform() else _NOT_UNIFORM

    def _uniform(self) -> bool:
        """Whether all rows compute as many tokens as a draft has, and one more; of a prompt, one
        alone, on releases that tell prompts from decodes."""
        rows = self.served.rows
        if knows_prompts() and any(row.new > 1 and not row.goes_on for row in rows):
            return False
        return all(row.tokens == self._config.spec_steps + 1 for row in rows)

    # A step

    def replay(self, batch: Batch) -> None:
        self._with_graphs = True
        super().replay(batch)

    def eager(self, batch: Batch) -> None:
        self._with_graphs = False
        super().eager(batch)

    def _step(self, batch: Batch) -> None:
        self._tell(self.served.before(batch))
        self.runner.speculator.model.kept.fill_(torch.nan)
        super()._step(batch)

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        rows = batch.raw_bs if self.ran_eagerly else self._last.rows
        return rows, rows * self._config.spec_steps

    def live_tokens(self, batch: Batch) -> int:
        return len(batch.slot_mapping)

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        seen.shown_tokens = batch.num_tokens
        seen.told = self._told(batch)
        return seen

    @property
    def _order(self) -> list[int]:
        """Row of the engine of each row of the batch."""
        rows = self._rows_of_the_engine()
        return [rows.index(row.name) for row in self.served.rows]

    def _told(self, batch: Batch) -> dict[str, list[int]]:
        """What follows from the drafts that stay, which the case does not say."""
        rows, steps = self.served.rows, self._config.spec_steps
        padded = self._chosen["first"].tokens - sum(row.tokens for row in rows)
        return {
            "graphs": self._graphs_due(batch),
            **told_of_first(rows),
            "first_padded_slots": [-1] * padded,
            "input_ids": next_token(batch.input_ids, 0, 0).tolist(),
            "positions": [row.past + 1 for row in rows],
            "slot_mapping": batch.slot_mapping[steps - 1 :: steps].tolist(),
        }

    def _graphs_due(self, batch: Batch) -> list[int]:
        """Whether a batch that fits takes a graph for its first forward, and for those behind."""
        if not batch.raw_bs:
            return []
        fits = self._with_graphs and batch.raw_bs <= max(self._config.capture_bs)
        behind = [fits or not self.ran_eagerly] if "next" in self._managers else []
        return [int(fits and self._uniform()), *map(int, behind)]

    def used_buffers(self, batch: Batch, rows: int, tokens: int) -> dict[str, torch.Tensor]:
        first = shown_of_first(self._first, self._order, self.served.rows)
        shown = {**first, **self._seen_graphs()}
        if "next" not in self._managers:
            return shown
        last = self.runner.block_tables.slot_mappings[0, :rows].clone()
        return {**shown, **self._next, "slot_mapping": last}

    def _seen_graphs(self) -> dict[str, torch.Tensor]:
        taken = [self._chosen[name].graph is not None for name in self._managers]
        return {"graphs": torch.tensor(taken, dtype=torch.int64)}

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        rows, tokens = self.padded_size(batch)
        return self.used_buffers(batch, rows, tokens) if self.ran_eagerly else {}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return () if mode == "idle" else ("attention", "hidden_states", "draft_tokens")

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        """By row, then step."""
        if not self.served.rows:
            return {}
        kept: torch.Tensor = self.runner.speculator.model.kept
        return drafted_outputs(kept[: len(self.served.rows)], self._kept_drafts(), self._config)

    def _kept_drafts(self) -> torch.Tensor:
        """What the runner keeps for the next step, by its rows."""
        states = self.runner.req_states
        rows = [states.req_id_to_index[name] for name in self._rows_of_the_engine()]
        drafts: torch.Tensor = states.draft_tokens[rows]
        return drafts
