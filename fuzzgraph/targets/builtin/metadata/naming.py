"""Names under which the target declares the metadata buffers."""

from __future__ import annotations

import torch

from fuzzgraph.targets.builtin.metadata.views import BuiltView
from fuzzgraph.targets.builtin.metadata.work_plan import PlanView, WorkPlan


def view_fields(view: BuiltView) -> dict[str, torch.Tensor]:
    """Buffers by the names under which the target declares them."""
    found: dict[str, torch.Tensor] = {}
    if view.qo_indptr is not None:
        found["qo_indptr"] = view.qo_indptr
    if view.skipped is not None:
        found["kv_lens"] = view.kv_lens
    if view.kv is not None:
        found |= {"kv_indptr": view.kv.indptr, "kv_indices": view.kv.indices}
    if view.pages is not None:
        found |= {"page_table": view.pages.table, "kv_last_page_len": view.pages.last_page_len}
    if view.mask is not None:
        found |= {"mask_indptr": view.mask.indptr, "custom_mask": view.mask.mask}
    if view.plan is not None:
        found |= plan_fields(view.plan)
    if view.encoder is not None:
        found["encoder_kv_indptr"] = view.encoder.indptr
        found["encoder_kv_indices"] = view.encoder.indices
    return found


def plan_fields(view: PlanView, suffix: str = "") -> dict[str, torch.Tensor]:
    """The plan's buffers by their declared names."""
    return {
        f"merge_indptr{suffix}": view.plan.merge_indptr,
        f"plan_tokens{suffix}": view.plan.item_tokens,
        f"plan_chunks{suffix}": view.plan.item_chunks,
        f"plan_valid{suffix}": view.plan.valid,
    }


def plan_buffers(plan: WorkPlan, suffix: str = "") -> dict[str, torch.Tensor]:
    """Whole buffers of a plan, by the same names."""
    return {
        f"merge_indptr{suffix}": plan.merge_indptr,
        f"plan_tokens{suffix}": plan.item_tokens,
        f"plan_chunks{suffix}": plan.item_chunks,
        f"plan_valid{suffix}": plan.valid,
    }
