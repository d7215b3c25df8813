"""Memory that an indexer finds for the scores of a forward without a graph.

From 0.5.21 on DeepSeek V4's indexers score their rows chunk by chunk where the scores of all would
take more than a fifth of the memory that is free (sglang mqa_logits_utils.py
`mqa_logits_budget_bytes`, dsv4/metadata.py `plan_indexer_row_chunks`). The engine looks at it from
eight million scores on, more than a case has; here it looks at it always.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import NotInRelease
from fuzzgraph.targets.offline.cuda_on_cpu import tensors_claim_cuda
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module, has_module, release

__all__ = ["ask_for_memory", "memory_for_scores"]

_UTILS = "sglang.srt.layers.attention.mqa_logits_utils"
_METADATA = "sglang.srt.layers.attention.dsv4.metadata"
_LEAST = "MQA_LOGITS_STATIC_SKIP_ELEMS"
_SHARE = 5
"""One part in so many of what is free is for scores (SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION)."""
_ALL = 80 << 30


def ask_for_memory() -> None:
    """Have the engine ask for its memory on a CPU as on a GPU, for the life of the process."""
    if has_module(_UTILS):
        metadata: Any = engine_module(_METADATA)
        indexer = metadata.PagedIndexerMetadata
        indexer._mqa_logits_budget = tensors_claim_cuda(indexer._mqa_logits_budget)


@contextlib.contextmanager
def memory_for_scores(config: EngineConfig) -> Iterator[None]:
    """Around the engine's code: as much memory is free as the config leaves for scores.

    Raises:
        NotInRelease: the release scores all rows at once, and the config says otherwise.
    """
    if not config.index_logits_bytes:
        yield
        return
    if not has_module(_UTILS):
        raise NotInRelease(
            f"sglang {release()} has indexers score all rows at once: index_logits_bytes must be 0"
        )
    device = {
        "mem_get_info": lambda *_: (_SHARE * config.index_logits_bytes, _ALL),
        "is_current_stream_capturing": lambda: False,  # a runner says itself what it captures
    }
    looks = {_LEAST: 0, "get_device_module": lambda: torch.cuda}
    with replaced_names([torch.cuda], device), replaced_names([engine_module(_UTILS)], looks):
        yield
