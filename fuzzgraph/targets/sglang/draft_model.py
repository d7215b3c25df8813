"""Draft models with the hidden states and logits that engines draft by, with a layer and without.

Behind attention stands `fuzzgraph.draft_head`; rows are picked and logits computed by the engine's
own `LogitsProcessor`. The model takes what the runner hands its forward, and nothing else: token
ids, positions, and of the batch the hidden states and what attention and logits look up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for, hidden_rows, next_token
from fuzzgraph.draft_head import LOGITS, branch_marks, head_weight, next_hidden
from fuzzgraph.targets.offline.demands import demand_rows
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import (
    FORWARD,
    AttentionModel,
    Rope,
    demand_forward,
    in_forward_context,
)
from fuzzgraph.targets.sglang.release import engine_module

_FAR = 1.0e3
_LOGITS = "sglang.srt.layers.logits_processor"


class DraftHead:
    """What both models below have behind attention, or in its place."""

    shared_experts_config = None
    attended: torch.Tensor
    """Attention of all tokens of the last forward; of the last draft by row, then step."""
    hidden: torch.Tensor
    """Hidden states, likewise."""
    attend: Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]

    def prepare(self, config: EngineConfig, device: torch.device) -> None:
        """Make its weights."""
        self._columns = config.num_q_heads * config.v_head_dim
        self._branches = config.spec_topk if config.draft_branches == "chosen" else 1
        weight = head_weight(config, content_for(config).dtype)
        self.head = Stub(weight=torch.empty_like(weight, device=device).copy_(weight))
        self._steps: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self._process: Any = None

    def open(self) -> None:
        """Once the server's arguments are the process's, which the engine's processor reads."""
        self._process = engine_module(_LOGITS).LogitsProcessor(Stub(vocab_size=LOGITS))

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """Logits and hidden states of the rows that the engine asks for."""
        demand_forward(input_ids, positions, forward_batch)
        held = getattr(forward_batch.spec_info, "hidden_states", None)
        given = demand_rows(held, len(input_ids), "hidden_states", FORWARD)
        computed = self.attend(input_ids, positions, forward_batch)
        attended = demand_rows(computed, len(input_ids), "attention", FORWARD)
        step = len(self._steps or ())
        predicted = next_token(input_ids, step, 0)
        if self._branches > 1:
            predicted = branch_marks(input_ids, step, self._branches, attended.dtype)
        hidden = next_hidden(
            attended[:, : self._columns], given, predicted
        )  # mixed rows lie behind
        if self._steps is not None:
            self._steps.append((attended, hidden))
        self.attended, self.hidden = attended, hidden
        if not len(input_ids):  # it would take the last token of none
            return None
        return self._process(input_ids, hidden, self.head, forward_batch)

    def draft(self, loop: Callable[[], Any]) -> Any:
        """Run the worker's loop over the steps of a draft; what it returns."""
        self._steps = []
        try:
            found = loop()
            attended, hidden = zip(*self._steps, strict=True)
        finally:
            self._steps = None
        self.attended = torch.stack(attended, 1).flatten(0, 1)
        self.hidden = torch.stack(hidden, 1).flatten(0, 1)
        return found


class UnattendedModel(DraftHead):
    """A draft model without a layer, for runners whose attention is not driven."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self.prepare(config, device)
        table = content_for(config).hidden_table
        self._table = torch.empty_like(table, device=device).copy_(table)

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """The front part of what `Content.hidden_states` has for the tokens."""
        rows = hidden_rows(input_ids, positions)
        return self._table.index_select(0, rows)[:, : self._columns]


class DraftModel(DraftHead, AttentionModel):
    """A draft model of one layer, or one layer of several."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        rope: Rope = "apart",
        draft_layer: int = 0,
    ) -> None:
        super().__init__(config, device, rope, draft_layer)
        self.prepare(config, device)
        # Up to 0.5.11 a draft leaves its positions moved on, at each of three forwards for each
        # captured size. A model's table is longer than that; what lies there is no request's.
        moved = 3 * config.spec_steps * len(config.capture_bs)
        self.pos_embed = torch.nn.functional.pad(self.pos_embed, (0, 0, 0, moved), value=_FAR)

    def attend_drafts(self, tokens: torch.Tensor, forward_batch: Any, backends: list[Any]) -> None:
        """All steps of a draft of one branch, each on its own backend; outputs by row, then step.

        As the workers' `draft_forward` does, it sets what differs between steps on the batch.

        Args:
            tokens: [rows] the first token of each row.
            backends: one for each step.
        """
        all_slots, steps = forward_batch.out_cache_loc, self._config.spec_steps
        held = {name: getattr(forward_batch, name, None) for name in ("input_ids", "attn_backend")}
        slots = all_slots.view(-1, steps)
        branch, outputs = torch.zeros_like(tokens), []
        for step in range(steps):
            forward_batch.input_ids, forward_batch.out_cache_loc = tokens, slots[:, step]
            # Up to 0.5.12 the layer asks the batch.
            forward_batch.attn_backend = backends[step]
            with in_forward_context(backends[step], forward_batch):
                positions = forward_batch.positions + step
                outputs.append(self.attend(tokens, positions, forward_batch))
            tokens = next_token(tokens, step, branch)
        forward_batch.out_cache_loc = all_slots
        for name, value in held.items():
            setattr(forward_batch, name, value)
        self.attended = torch.stack(outputs, 1).flatten(0, 1)


def no_draft(forward_batch: Any) -> Any:
    """What a draft model gives a runner, with zeros for logits and hidden states."""
    held = forward_batch.next_token_logits_buffer
    buffer = demand_rows(held, None, "next_token_logits_buffer", FORWARD)
    hidden = forward_batch.spec_info.hidden_states
    return engine_module(_LOGITS).LogitsProcessorOutput(
        next_token_logits=buffer * 0,
        hidden_states=hidden[: buffer.shape[0]] * 0,
    )
