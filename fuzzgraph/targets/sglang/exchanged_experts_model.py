"""Experts behind DeepEP's dispatch and combine in low-latency mode.

Tokens stay on their rank up to the block: it sends each of them to the ranks of its experts, and
sums up what comes back. So the stages around it gather nothing, which is the engine's own decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fuzzgraph.targets.sglang.attention_model import Written
from fuzzgraph.targets.sglang.experts_model import ExpertsModel
from fuzzgraph.targets.sglang.stubs.expert_ranks import ExpertRanks
from fuzzgraph.targets.sglang.stubs.low_latency_exchange import LowLatencyBuffer
from fuzzgraph.world import Batch


class ExchangedExpertsModel(ExpertsModel):
    """The block as `--moe-a2a-backend deepep --deepep-mode low_latency` has it."""

    buffer: LowLatencyBuffer
    received: torch.Tensor
    """int32 [experts of this rank] tokens of each in the last run, as its products count them."""

    def _open_ranks(self, ranks: ExpertRanks) -> None:
        super()._open_ranks(ranks)
        self.buffer = LowLatencyBuffer(self._config, self._device, self.rows)
        each = self._config.num_experts // self._config.ep_size
        self.received = torch.zeros(each, dtype=torch.int32, device=self._device)

    def past(self, batch: Batch) -> Iterable[Written]:
        yield from super().past(batch)
        yield from self.buffer.past(batch)

    def given_of_ranks(self, sizes: list[int]) -> torch.Tensor:
        return self.buffer.given_of_ranks(sizes)

    def _fill_block(self, block: Any) -> None:
        super()._fill_block(block)
        block.experts.quant_method.process_weights_after_loading(block.experts)

    def _handed_ids(self, dispatched: Any) -> torch.Tensor:
        self.received.copy_(dispatched.masked_m)
        found: torch.Tensor = dispatched.topk_ids
        return found
