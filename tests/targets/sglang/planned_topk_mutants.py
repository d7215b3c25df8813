"""Sparse attention whose planned selection of keys goes wrong; opened by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends import nsa
from fuzzgraph.targets.sglang.stubs.planned_topk import topk_module
from tests.targets.sglang.changed_lines import change_line_elsewhere

__all__ = [
    "lengths_of_the_table",
    "misspelt_export",
    "packed_selection_everywhere",
    "pages_of_another_size",
    "plan_of_the_batch_before",
    "plan_of_the_capture",
    "plan_without_the_last_row",
    "tables_of_other_rows",
    "verify_with_the_plan_of_the_capture",
]

_NSA = "sglang-nsa"


def _opened(change: Callable[[Any], None], verify: bool = False) -> Any:
    target = nsa.target(f"{_NSA}-verify", "target_verify") if verify else nsa.target(_NSA, "decode")
    open_session = target.open

    def open_changed(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        change(session)
        return session

    target.open = open_changed  # type: ignore[method-assign]
    return target


def _no_refresh(session: Any) -> None:
    session.backend._refresh_topk_v2_plan = lambda metadata: None


def _built(line: str, other: str) -> Any:
    """What the engine compiles is asked for by another line."""
    module = "sglang.kernels.ops.attention.dsv4.topk"
    return _opened(
        lambda session: change_line_elsewhere(session, module, "_jit_topk_v2_module", line, other)
    )


def packed_selection_everywhere() -> Any:
    """It exports on NVIDIA's GPUs what its source has for AMD's alone."""
    return _built("if is_hip_runtime():", "if not is_hip_runtime():")


def misspelt_export() -> Any:
    """It exports a method that its source does not have, and that nobody calls."""
    return _built("::transform_kpool_ragged", "::transform_pooled_ragged")


def plan_of_the_capture() -> Any:
    """Replays follow the plan that their graph was captured with."""
    return _opened(_no_refresh)


def verify_with_the_plan_of_the_capture() -> Any:
    """The same of a verify, whose every token has an entry."""
    return _opened(_no_refresh, verify=True)


def plan_of_the_batch_before() -> Any:
    """The plan is refreshed before the lengths are, so that it is one batch behind."""

    def change(session: Any) -> None:
        last: dict[int, torch.Tensor] = {}

        def refresh(metadata: Any) -> None:
            plan = metadata.topk_v2_plan
            made = topk_module().plan_topk_v2(metadata.dsa_seqlens_expanded)
            plan.copy_(last.get(len(plan), made))
            last[len(plan)] = made

        session.backend._refresh_topk_v2_plan = refresh

    return _opened(change)


def plan_without_the_last_row() -> Any:
    """The plan of a replay is made of all rows but the last."""

    def change(session: Any) -> None:
        def refresh(metadata: Any) -> None:
            lens = metadata.dsa_seqlens_expanded.clone()
            lens[-1:] = 0
            metadata.topk_v2_plan.copy_(topk_module().plan_topk_v2(lens))

        session.backend._refresh_topk_v2_plan = refresh

    return _opened(change)


def _with_metadata(change: Callable[[Any], Any]) -> Any:
    """The target, whose selection reads what `change` makes of the metadata."""

    def changed(session: Any) -> None:
        given = session.backend.get_indexer_metadata

        def other(layer_id: int, forward_batch: Any) -> Any:
            metadata = given(layer_id, forward_batch)
            kind, attended = type(metadata), change(metadata.attn_metadata)

            class Other(kind):  # type: ignore[misc, valid-type]
                def topk_transform(self, *args: Any, **named: Any) -> Any:
                    return kind.topk_transform(
                        dataclasses.replace(metadata, attn_metadata=attended), *args, **named
                    )

            found = dataclasses.replace(metadata)
            object.__setattr__(found, "__class__", Other)
            return found

        session.backend.get_indexer_metadata = other

    return _opened(changed)


def pages_of_another_size() -> Any:
    """Slots are counted by pages of half the size."""
    return _with_metadata(lambda found: dataclasses.replace(found, page_size=found.page_size // 2))


def tables_of_other_rows() -> Any:
    """Slots are looked up in the table of the row at the batch's other end."""
    return _with_metadata(
        lambda found: dataclasses.replace(found, real_page_table=found.real_page_table.flip(0))
    )


def lengths_of_the_table() -> Any:
    """Each row selects among as many keys as its table has room for, whatever its length."""

    def change(found: Any) -> Any:
        width = found.real_page_table.shape[1] * found.page_size
        lens = torch.full_like(found.dsa_seqlens_expanded, width)
        return dataclasses.replace(
            found, dsa_seqlens_expanded=lens, topk_v2_plan=topk_module().plan_topk_v2(lens)
        )

    return _with_metadata(change)
