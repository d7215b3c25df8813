"""Pinned memory that is written again before the copy out of it need have run, or read before the
copy into it need have."""

from __future__ import annotations

import torch

from fuzzgraph.targets.builtin.faults.fault import Fault
from fuzzgraph.targets.builtin.staging import MirroredRegistry, StagedRegistry, staged_by


class OneSet(StagedRegistry):
    sets = 1


class OneBuffer(StagedRegistry):
    def staging_of(self, target: torch.Tensor) -> torch.Tensor:
        staged = self.staged[self.turn].values()
        return max((each for each in staged if each.dtype == target.dtype), key=torch.Tensor.numel)


class ReadAtOnce(MirroredRegistry):
    def wait_for_mirror(self) -> None:
        pass


FAULTS = (
    Fault(
        name="vllm-pr-24527-pinned-inputs-reused-at-once",
        source="vLLM PR 24527, 25279, 47644, vllm-ascend PR 12071: the next step is prepared in the"
        " pinned buffers from which the copies of this one may not have run",
        kind="late copies",
        clause="reads",
        trigger="any replay with another batch behind it",
        components=staged_by(OneSet),
        overlap="pinned",
    ),
    Fault(
        name="mini-sglang-pr-103-one-pinned-buffer-for-all",
        source="mini-sglang PR 103, vLLM issue 40756: two plans pass through one pinned buffer, and"
        " nothing waits for the copy of the first",
        kind="late copies",
        clause="reads",
        trigger="any replay",
        components=staged_by(OneBuffer),
        overlap="pinned",
    ),
    Fault(
        name="sglang-pr-16493-mirror-read-at-once",
        source="sglang PR 16493, vLLM PR 36013, vllm-ascend PR 8764: the host reads what it copies"
        " from the device without waiting before the copy need have arrived",
        kind="late copies",
        clause="reads",
        trigger="any decode",
        components=staged_by(ReadAtOnce),
        overlap="mirrored",
    ),
)
