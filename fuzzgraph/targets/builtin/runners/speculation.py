"""Runners of speculative decoding: verify, draft-extend, and the multi-step draft."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzgraph.case import Mode
from fuzzgraph.content import next_token
from fuzzgraph.row_mixing import mixed_outputs
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata
from fuzzgraph.targets.builtin.model import ForwardInputs
from fuzzgraph.targets.builtin.registry import BufferRegistry
from fuzzgraph.targets.builtin.runners.base import GraphRunner, Outputs, RunnerContext, Step
from fuzzgraph.targets.builtin.shape import Extent


class VerifyRunner(GraphRunner):
    """Checks `draft_tokens` tokens a row, a chain or a tree, under a custom mask."""

    mode: Mode = "target_verify"


class DraftExtendRunner(GraphRunner):
    """Runs the accepted tokens of each row, of which there may be none, through the draft model."""

    mode: Mode = "draft_extend"


class DraftRunner(GraphRunner):
    """Drafts `spec_steps` tokens on each of `spec_topk` branches in one graph.

    What it hands out are copies: the scheduler keeps them while later drafts run.
    """

    mode: Mode = "draft"

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        rows = max(self.largest().rows, self.largest_eager().rows)
        self.branches = torch.arange(context.config.spec_topk, device=context.device).repeat(rows)

    def promised_outputs(self) -> tuple[str, ...]:
        return ("attention", *mixed_outputs(self.config), "draft_tokens")

    def keeps_outputs(self) -> bool:
        return True

    def run_graph(self, size: int) -> Outputs:
        return self.handed_out(super().run_graph(size))

    def handed_out(self, outputs: Outputs) -> Outputs:
        """Copies, which no later replay rewrites."""
        return {name: output.clone() for name, output in outputs.items()}

    def run_model(self, step: Step, metadata: FullMetadata) -> Outputs:
        """All steps, one after the other; outputs are ordered by row, branch, step."""
        inputs = self.step_inputs(step)
        slots = inputs.out_cache_loc.view(step.padded.tokens, self.config.spec_steps)
        steps: dict[str, list[torch.Tensor]] = {"attention": []}
        steps |= {name: [] for name in mixed_outputs(self.config)}
        predicted = []
        for number in range(self.config.spec_steps):
            out = self.run_step(inputs, slots[:, number], metadata, number)
            inputs = replace(inputs, input_ids=self.predict(inputs.input_ids, number))
            steps["attention"].append(out)
            if "mixed" in steps:
                steps["mixed"].append(self.model.mix(out))
            predicted.append(inputs.input_ids)
        outputs = {name: torch.stack(of_steps, 1).flatten(0, 1) for name, of_steps in steps.items()}
        return {**outputs, "draft_tokens": torch.stack(predicted, 1).flatten()}

    def run_step(
        self, inputs: ForwardInputs, slots: torch.Tensor, metadata: FullMetadata, number: int
    ) -> torch.Tensor:
        """Attention output of one step: [branches, heads, v_head_dim]."""
        now = replace(inputs, positions=inputs.positions + number, out_cache_loc=slots)
        q = self.model.before_attention(now)
        out = self.model.new_output(now)
        self.model.attend(q, out, now, replace(metadata, attention=(metadata.attention[number],)))
        return out

    def predict(self, tokens: torch.Tensor, number: int) -> torch.Tensor:
        """[branches] the token that follows each at this step."""
        return next_token(tokens, number, self.branches[: len(tokens)])

    def forward_inputs(
        self, registry: BufferRegistry, extent: Extent, sharded_tokens: int
    ) -> ForwardInputs:
        return ForwardInputs(
            extent,
            registry.view("input_ids", extent),
            registry.view("positions", extent),
            registry.view("draft_cache_loc", extent),
            crosses=self.crosses(),
        )

    def empty_outputs(self) -> Outputs:
        none = super().empty_outputs()["attention"]
        outputs = dict.fromkeys(("attention", *mixed_outputs(self.config)), none)
        return {**outputs, "draft_tokens": none.new_zeros(0, dtype=torch.int64)}
