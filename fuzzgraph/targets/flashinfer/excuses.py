"""What FlashInfer's wrappers hold by another rule than `oracles.handover` has, with the sources."""

from __future__ import annotations

from fuzzgraph.handover import Excuse

EXCUSES: tuple[Excuse, ...] = (
    Excuse(
        "BatchDecodeWithPagedKVCacheWrapper.self._qo_indptr_buf",
        "missing",
        "FlashInfer decode.py __init__: with a graph only tensor cores get offsets of queries",
        "the kernel without tensor cores has one query for each row, and reads no offsets",
    ),
    Excuse(
        "*.plan.*indices",
        "form",
        "FlashInfer decode.py, prefill.py and mla: a plan copies the list to the graph's buffer",
        "lists of pages are as long as the batch has pages",
    ),
    Excuse(
        "*._plan_info",
        "live",
        "FlashInfer scheduler.cuh DecodePlanInfo and PrefillPlanInfo: the numbers of a plan",
        "the list has as many numbers for any batch; padded rows take part in the plan",
    ),
)
