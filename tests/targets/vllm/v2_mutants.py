"""Planted bugs of vLLM's V2 runner, each of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.vllm.v2_session import V2RunnerSession
from fuzzgraph.targets.vllm.v2_target import V2FlashAttentionTarget, V2TritonMlaTarget
from fuzzgraph.targets.vllm.v2_verify import V2VerifySession


class _LengthsNotCounted(V2RunnerSession):
    """`post_update` leaves the tokens that a request has computed as they were."""

    def _spy(self) -> None:
        super()._spy()
        self.runner.postprocess_sampled = lambda *_, **__: None


class _PagesNotStaged(V2RunnerSession):
    """`update_requests` stages no pages of a request that goes on."""

    def _spy(self) -> None:
        super()._spy()
        tables = self.runner.block_tables
        append = tables.append_block_ids
        tables.append_block_ids = lambda row, ids, overwrite: (
            append(row, ids, overwrite) if overwrite else None
        )


class _SlotsOfPadding(V2RunnerSession):
    """`compute_slot_mappings` leaves what is behind the live tokens."""

    def _spy(self) -> None:
        super()._spy()
        tables = self.runner.block_tables
        compute = tables.compute_slot_mappings

        def computed(requests: Any, offsets: Any, *args: Any, **kwargs: Any) -> Any:
            live = int(offsets[len(requests)])
            before = tables.slot_mappings[:, live:].clone()
            made = compute(requests, offsets, *args, **kwargs)
            tables.slot_mappings[:, live:] = before
            return made

        tables.compute_slot_mappings = computed


class _PromptsNeverEnd(V2RunnerSession):
    """`gather_batch_req_state` takes every row for one that computes its prompt."""

    def _spy(self) -> None:
        super()._spy()
        state = self.runner.model_state
        prepare = state.prepare_attn

        def prepared(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            input_batch.is_prefilling_np = input_batch.is_prefilling_np | True
            return prepare(input_batch, *args, **kwargs)

        state.prepare_attn = prepared


class _NothingCaptured(V2RunnerSession):
    """`capture_model` takes the branch of a server without graphs."""

    def _spy(self) -> None:
        super()._spy()
        self.runner.cudagraph_manager.needs_capture = lambda: False


class _AnswerOfTheNextStep(V2RunnerSession):
    """The answer is no copy: the next step samples into the same memory."""

    def _step(self, batch: Any) -> None:
        super()._step(batch)
        if batch.raw_bs:
            shared = self.__dict__.setdefault("_shared", {})
            own = self._answer.sampled_token_ids
            array = shared.setdefault("ids", own)
            array[: len(own)] = own[: len(array)]
            self._answer.sampled_token_ids = array[: len(own)]


class _RejectedDraftsStay(V2VerifySession):
    """`postprocess_sampled` counts rejected drafts as computed."""

    def _spy(self) -> None:
        super()._spy()
        runner = self.runner
        update = runner.postprocess_sampled

        def updated(rows: Any, tokens: Any, sampled: Any, rejected: Any, *more: Any) -> Any:
            return update(rows, tokens, sampled, rejected * 0, *more)

        runner.postprocess_sampled = updated


class _DraftsOfBefore(V2VerifySession):
    """The runner reads drafts by the row of the batch in place of the request's."""

    def _propose(self) -> None:
        super()._propose()
        drafts = self.runner.req_states.draft_tokens
        drafts.copy_(drafts.flip(0))


class NoDraftStays(V2VerifySession):
    """The rejection sampler compares what the model predicts with token 0."""

    def _spy(self) -> None:
        super()._spy()
        sampler = self.runner.rejection_sampler
        verify = sampler._verify

        def verified(*args: Any) -> Any:
            *others, drafts = args
            return verify(*others, drafts * 0)

        sampler._verify = verified


def _target(session: type[V2RunnerSession]) -> V2FlashAttentionTarget:
    target = V2FlashAttentionTarget("vllm-v2-fa")
    target.session = session
    return target


def _verify_target(session: type[V2VerifySession]) -> V2FlashAttentionTarget:
    target = V2FlashAttentionTarget("vllm-v2-fa-verify", "target_verify")
    target.session = session
    return target


def rejected_drafts_stay() -> V2FlashAttentionTarget:
    return _verify_target(_RejectedDraftsStay)


def drafts_of_before() -> V2FlashAttentionTarget:
    return _verify_target(_DraftsOfBefore)


def no_draft_stays() -> V2FlashAttentionTarget:
    return _verify_target(NoDraftStays)


def lengths_not_counted() -> V2FlashAttentionTarget:
    return _target(_LengthsNotCounted)


def pages_not_staged() -> V2FlashAttentionTarget:
    return _target(_PagesNotStaged)


def slots_of_padding() -> V2FlashAttentionTarget:
    return _target(_SlotsOfPadding)


def nothing_captured() -> V2FlashAttentionTarget:
    return _target(_NothingCaptured)


def answer_of_the_next_step() -> V2FlashAttentionTarget:
    return _target(_AnswerOfTheNextStep)


def prompts_never_end() -> V2FlashAttentionTarget:
    return _target(_PromptsNeverEnd)


def latent_pages_not_staged() -> V2TritonMlaTarget:
    target = V2TritonMlaTarget("vllm-v2-triton-mla")
    target.session = _PagesNotStaged
    return target
