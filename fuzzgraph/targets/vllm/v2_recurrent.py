"""The V2 runner with models that have recurrent layers, alone or beside attention.

Source: vLLM v1/worker/gpu/model_states/mamba_hybrid.py, which the runner takes for such models.
"""

from __future__ import annotations

from fuzzgraph.case import Mode
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.vllm.beside_session import (
    DeltaNetBesideAttentionSession,
    MixerBesideAttentionSession,
)
from fuzzgraph.targets.vllm.beside_target import DeltaNetHybridTarget, Mamba2HybridTarget
from fuzzgraph.targets.vllm.gdn_session import DeltaNetSession
from fuzzgraph.targets.vllm.recurrent_session import RecurrentSession
from fuzzgraph.targets.vllm.recurrent_target import (
    DeltaNetTarget,
    Mamba2Target,
    demand_padded_prompts,
)
from fuzzgraph.targets.vllm.release import VLLM, engine_module, release
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import VllmTarget
from fuzzgraph.targets.vllm.v2_fields import EXCUSES
from fuzzgraph.targets.vllm.v2_session import INPUT_BATCH, V2_RUNNER, V2RunnerSession
from fuzzgraph.targets.vllm.v2_verify import NGRAM, V2VerifySession
from fuzzgraph.world import Batch

_STATES = "vllm.v1.worker.gpu.model_states.mamba_hybrid"


def _runs_prompts_as_decodes() -> bool:
    return "prefill_runs_as_decode_np" in engine_module(INPUT_BATCH).InputBatch.__annotations__


class _WithStates(V2RunnerSession):
    """What the runner does otherwise for models with recurrent layers."""

    def _prefilling(self, batch: Batch) -> list[int]:
        """One new token of a prompt over tokens that are there runs as a decode since 0.33, drafts
        behind it or not (model_runner.py: `prefill_runs_as_decode_np`)."""
        if not _runs_prompts_as_decodes():
            return super()._prefilling(batch)
        given = self._step_done.output.scheduled_spec_decode_tokens
        drafts = [len(given.get(name, ())) for name in self._step_done.rows]
        runs_as_decode = (batch.new_lens - drafts == 1) & (batch.cached_lens > 0)
        said = super()._prefilling(batch)
        return [flag * (not runs) for flag, runs in zip(said, runs_as_decode, strict=True)]


class V2MixerSession(RecurrentSession, _WithStates):
    """With a Mamba2 layer."""


class V2DeltaNetSession(DeltaNetSession, _WithStates):
    """With a gated-delta-net layer."""


class V2MixerBesideAttentionSession(MixerBesideAttentionSession, _WithStates):
    """With a Mamba2 layer and attention."""


class V2DeltaNetBesideAttentionSession(DeltaNetBesideAttentionSession, _WithStates):
    """With a gated-delta-net layer and attention."""


class V2DeltaNetVerifySession(DeltaNetSession, V2VerifySession, _WithStates):
    """With a gated-delta-net layer and drafts by n-grams."""


class V2DeltaNetBesideAttentionVerifySession(
    DeltaNetBesideAttentionSession, V2VerifySession, _WithStates
):
    """With a gated-delta-net layer, attention and drafts by n-grams."""


class _OnV2(VllmTarget):
    """With `VLLM_USE_V2_MODEL_RUNNER=1`, on releases whose V2 runner keeps states."""

    runner = V2_RUNNER
    generation = "V2"
    verifies: type[RunnerSession]
    """The session of a target that verifies drafts."""

    def __init__(self, name: str, mode: Mode = "decode") -> None:
        super().__init__(name, mode)
        if mode == "target_verify":
            self.session = self.verifies

    def load(self) -> None:
        super().load()
        with cuda_on_cpu():
            VLLM.load(_STATES)
            if self.mode == "target_verify":
                VLLM.load(NGRAM)


class V2Mamba2Target(_OnV2, Mamba2Target):
    """A Mamba2 layer alone, as Mamba2 models have them."""

    driven = Mamba2Target.driven.replace(min_seq_len=1)
    session = V2MixerSession
    excuses = EXCUSES

    def load(self) -> None:
        super().load()
        if not _runs_prompts_as_decodes():
            raise AdapterUnavailable(
                f"vLLM {release()} serves a model without attention by the V1 runner, and target "
                f"{self.name!r} drives the other one. Name a later release, for example "
                "--release 0.33.0."
            )


class V2DeltaNetTarget(_OnV2, DeltaNetTarget):
    """A gated delta net alone."""

    driven = DeltaNetTarget.driven.replace(min_seq_len=1)
    # The runner keeps the counts of accepted tokens by request, and not by row.
    verified = DeltaNetTarget.verified.replace(min_seq_len=1, waiting=True)
    session = V2DeltaNetSession
    verifies = V2DeltaNetVerifySession
    excuses = (*DeltaNetTarget.excuses, *EXCUSES)


class V2JoiningVerifyTarget(V2DeltaNetTarget):
    """A gated delta net alone, where requests join with drafts behind their prompts."""

    kernels = "drafts behind prompts"
    verified = V2DeltaNetTarget.verified.replace(drafted_prompts=True)

    def load(self) -> None:
        super().load()
        demand_padded_prompts(self.name)


class V2Mamba2HybridTarget(_OnV2, Mamba2HybridTarget):
    """A Mamba2 layer beside attention."""

    driven = Mamba2HybridTarget.driven.replace(min_seq_len=1)
    session = V2MixerBesideAttentionSession
    excuses = EXCUSES


class V2DeltaNetHybridTarget(_OnV2, DeltaNetHybridTarget):
    """A gated delta net beside attention."""

    driven = DeltaNetHybridTarget.driven.replace(min_seq_len=1)
    verified = DeltaNetHybridTarget.verified.replace(min_seq_len=1, waiting=True)
    session = V2DeltaNetBesideAttentionSession
    verifies = V2DeltaNetBesideAttentionVerifySession
    excuses = (*DeltaNetTarget.excuses, *EXCUSES)
