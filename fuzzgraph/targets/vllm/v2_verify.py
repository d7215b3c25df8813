"""Verifies of drafts on the V2 runner, whose drafts never leave the device.

The case says which tokens were proposed: they are written where the proposer leaves its own.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.targets.vllm.served_requests import ServedRequests, ServedWithDrafts
from fuzzgraph.targets.vllm.v2_session import V2RunnerSession

NGRAM = "vllm.v1.worker.gpu.spec_decode.ngram.speculator"
"""The proposer; releases before it have none for V2 without a model."""


class V2VerifySession(V2RunnerSession):
    """A V2 runner with drafts by n-grams and the rejection sampler."""

    served_kind: type[ServedRequests] = ServedWithDrafts

    def _spy(self) -> None:
        super()._spy()
        prepare = self.runner.prepare_inputs

        def prepared(*args: Any, **kwargs: Any) -> Any:
            self._propose()
            return prepare(*args, **kwargs)

        # Not before: a request that is added has no drafts, and the runner clears its row.
        self.runner.prepare_inputs = prepared

    def _propose(self) -> None:
        states = self.runner.req_states
        for name, drafts in self._step_done.output.scheduled_spec_decode_tokens.items():
            row = states.req_id_to_index[name]
            states.draft_tokens[row, : len(drafts)] = torch.tensor(drafts)
