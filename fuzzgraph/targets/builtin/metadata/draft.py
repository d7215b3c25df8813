"""Metadata of multi-step drafting: one page map per step, one row per branch.

At step s a branch sees its request's prefix and its own s + 1 new tokens. All steps are written
together, before or inside the one graph that runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.metadata.builder import BuiltView, MetadataBuilder
from fuzzgraph.targets.builtin.metadata.draft_indices import DraftKvIndices
from fuzzgraph.targets.builtin.metadata.kv_indices import KvView
from fuzzgraph.targets.builtin.metadata.naming import plan_buffers, plan_fields
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata
from fuzzgraph.targets.builtin.metadata.work_plan import PlanView, WorkPlan
from fuzzgraph.targets.builtin.shape import Extent


@dataclass(slots=True)
class DraftStep:
    """Lengths, page map and plan of one draft step."""

    number: int
    kv_lens: torch.Tensor
    """int32 [branches] keys that the attention is given."""
    skipped: torch.Tensor | None
    kv: KvView
    plan: PlanView | None


@dataclass(slots=True, kw_only=True)
class DraftView(BuiltView):
    """All steps for one batch size."""

    branch_rows: torch.Tensor
    """int32 [branches] request row of each branch."""
    prefix_lens: torch.Tensor
    """int32 [branches]"""
    encoder_lens: torch.Tensor | None
    steps: tuple[DraftStep, ...] = ()


class DraftBuilder(MetadataBuilder):
    """Metadata of all steps of a draft."""

    def branches_capacity(self) -> int:
        """Rows of the attention: every branch of every padded request row."""
        return self.rows_capacity() * self.config.spec_topk

    def indices_rows(self) -> int:
        """Rows that each step's kv_indices has room for."""
        return self.branches_capacity()

    def max_kv_len(self) -> int:
        return self.config.max_context_len + self.config.spec_steps

    def max_q_len(self) -> int:
        """Every branch computes one token a step."""
        return 1

    def uses_pages(self) -> bool:
        """Branches share pages, so drafting lists slots whatever the target's page map is."""
        return False

    # buffers

    def allocate(self) -> None:
        steps, branches = self.config.spec_steps, self.branches_capacity()
        self.branch_rows = self._zeros(branches)
        self.prefix_lens = self._zeros(branches)
        self.step_lens = self._zeros(steps, 2, branches)
        self.steps_kv = tuple(self.allocate_kv() for _ in range(steps))
        self.steps_plan = tuple(self.allocate_plan() for _ in range(steps))
        if self.tables.encoder is not None:
            width = self.tables.encoder.width()
            self.encoder_lens = self._zeros(branches)
            self.encoder = self.components.encoder(
                self.tables.encoder, branches, width, self.device
            )

    def allocate_kv(self) -> DraftKvIndices:
        """One step's page map."""
        kv = self.components.draft_indices(
            self.tables.req_to_token, self.indices_rows(), self.listed_tokens(), self.device
        )
        own_slots = self.registry.buffers["draft_cache_loc"]
        kv.use_branches(self.prefix_lens, own_slots, self.config.spec_steps)
        return kv

    def allocate_plan(self) -> WorkPlan | None:
        if not self.config.split_kv:
            return None
        return self.components.plan(
            self.config.split_kv, self.branches_capacity(), self.listed_tokens(), self.device
        )

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    # views

    def make_view(self, extent: Extent) -> DraftView:
        branches = extent.rows * self.config.spec_topk
        seq_lens = self.registry.view("seq_lens", extent)
        view = DraftView(
            extent,
            self.raw_view(extent),
            seq_lens,
            None,
            None,
            branch_rows=self.branch_rows[:branches],
            prefix_lens=self.prefix_lens[:branches],
            encoder_lens=None if self.encoder is None else self.encoder_lens[:branches],
        )
        view.steps = tuple(self.step_view(view, step) for step in range(self.config.spec_steps))
        if self.encoder is not None and view.encoder_lens is not None:
            view.encoder = self.encoder.view(branches, view.branch_rows, view.encoder_lens)
        view.full = self.assemble(view)
        return view

    def step_view(self, view: DraftView, number: int) -> DraftStep:
        branches = len(view.branch_rows)
        kv_lens = self.step_lens[number, 0, :branches]
        skipped = self.step_lens[number, 1, :branches] if self.restricts_window() else None
        kv = self.steps_kv[number].view(branches, view.branch_rows, kv_lens, skipped)
        plan = self.steps_plan[number]
        planned = None
        if plan is not None:
            planned = plan.view(Extent(branches, branches), kv_lens, None)
        return DraftStep(number, kv_lens, skipped, kv, planned)

    def assemble(self, view: BuiltView) -> FullMetadata:
        assert isinstance(view, DraftView), "a draft builder makes draft views"
        cross = None if view.encoder is None else self.cross_batch(view, view.encoder)
        launches = tuple(self.step_batch(view, step) for step in view.steps)
        return FullMetadata(launches, cross, self.fields(view))

    def step_batch(self, view: DraftView, step: DraftStep) -> AttentionBatch:
        """The launch of one step."""
        return replace(
            self.attention_batch(view),
            kv_lens=step.kv_lens,
            kv_indptr=step.kv.indptr,
            kv_indices=step.kv.indices,
            plan=None if step.plan is None else step.plan.plan,
        )

    def fields(self, view: BuiltView) -> dict[str, torch.Tensor]:
        assert isinstance(view, DraftView), "a draft builder makes draft views"
        found = super().fields(view)
        for step in view.steps:
            found[f"kv_lens@{step.number}"] = step.kv_lens
            found[f"kv_indptr@{step.number}"] = step.kv.indptr
            found[f"kv_indices@{step.number}"] = step.kv.indices
            if step.plan is not None:
                found |= plan_fields(step.plan, f"@{step.number}")
        return found

    def static_buffers(self) -> dict[str, torch.Tensor]:
        found = self.encoder_buffers()
        for step in range(self.config.spec_steps):
            kv, plan = self.steps_kv[step], self.steps_plan[step]
            found[f"kv_lens@{step}"] = self.step_lens[step, 0]
            found[f"kv_indptr@{step}"] = kv.indptr
            found[f"kv_indices@{step}"] = kv.indices
            if plan is not None:
                found |= plan_buffers(plan, f"@{step}")
        return found

    # the work

    def build(self, view: BuiltView) -> None:
        assert isinstance(view, DraftView), "a draft builder makes draft views"
        self.write_branches(view)
        for step in view.steps:
            self.write_step(view, step)
        if self.encoder is not None and view.encoder is not None:
            self.encoder.write(view.encoder)

    def write_branches(self, view: DraftView) -> None:
        """Repeat what belongs to a request for each of its branches."""
        self.repeat(view.raw.request_rows, view.branch_rows)
        self.repeat(view.raw.seq_lens, view.prefix_lens)
        if view.encoder_lens is not None:
            self.repeat(self.registry.view("encoder_lens", view.extent), view.encoder_lens)

    def repeat(self, of_rows: torch.Tensor, of_branches: torch.Tensor) -> None:
        """of_branches[r * topk + b] = of_rows[r]."""
        of_branches.view(len(of_rows), -1).copy_(of_rows.unsqueeze(1))

    def write_step(self, view: DraftView, step: DraftStep) -> None:
        self.write_step_lens(view, step)
        self.steps_kv[step.number].write(step.kv)
        plan = self.steps_plan[step.number]
        if plan is not None and step.plan is not None:
            plan.write(step.plan)

    def write_step_lens(self, view: DraftView, step: DraftStep) -> None:
        """Prefix and own tokens so far; with a window, the last of them."""
        torch.add(view.prefix_lens, self.own_tokens(step.number), out=step.kv_lens)
        if step.skipped is not None:
            step.skipped.copy_(step.kv_lens)
            step.kv_lens.clamp_(max=self.config.sliding_window + 1)
            step.skipped.sub_(step.kv_lens)

    def own_tokens(self, step: int) -> int:
        """New tokens that a branch sees at a step, its current one included."""
        return step + 1
