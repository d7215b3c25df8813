"""The engine's DFlashWorkerV2 without a server behind it: what it drafts a block by.

Its constructor loads a draft model. All that its code asks of it up to the draft model's forward is
here: what lies in other objects stands in for them, its own buffers are made by itself.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.draft_head import head_weight
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, index_translator
from fuzzgraph.world import PLACEHOLDER, VOCAB, Batch, IntArray

WORKER = "sglang.srt.speculative.dflash_worker_v2"
_INPUT = "sglang.srt.speculative.dflash_info_v2"
COMMON = "sglang.srt.speculative.draft_worker_common"
_INFO = "sglang.srt.model_executor.forward_batch_info"
_RESERVED = ("nxt_kv_lens_cpu", "reserved_seq_lens_cpu")
"""What a draft input calls the lengths that the scheduler has reserved, by release; their sum
likewise."""


class _Drafts(Exception):
    """Ends the worker's code where the draft model would run, with the batch that it is given."""

    def __init__(self, forward_batch: Any) -> None:
        super().__init__()
        self.forward_batch = forward_batch


class BlockWorker:
    """A worker on one draft runner.

    Args:
        runner: the draft worker's, with its pools. That of keys and values is the target's too.
        requests: the target's request pool, another one than the draft worker's where drafts see a
            window of the past.
        mirrored: whether the scheduler knows lengths on the host; else it has an upper bound alone.
    """

    def __init__(
        self, runner: ModelRunner, config: EngineConfig, requests: Any, *, mirrored: bool
    ) -> None:
        self._runner, self._config, self._mirrored = runner, config, mirrored
        self._module = engine_module(WORKER)
        content, device = content_for(config), runner.device
        tokens = torch.arange(VOCAB)
        self.embedding = _on_device(content.hidden_states(tokens, torch.zeros_like(tokens)), device)
        self.head = Stub(weight=_on_device(head_weight(config, content.dtype)[:VOCAB], device))
        target = Stub(
            kv_index_translator=index_translator(runner, config, requests),
            model=Stub(get_input_embeddings=lambda: self._embed, lm_head=self.head),
            model_config=runner.model_config,
            tp_rank=0,
            req_to_token_pool=requests,
            server_args=runner.server_args,
        )
        self.engine = object.__new__(self._module.DFlashWorkerV2)
        vars(self.engine).update(self._attributes(target))

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding[tokens]

    def _attributes(self, target: Any) -> dict[str, Any]:
        """As the engine's constructor leaves them, for a draft model without more heads."""
        runner, width = self._runner, self._config.draft_tokens
        spec_info = engine_module(COMMON).make_draft_block_spec_info
        buffers = ("ids", "positions", "tokens", "end")
        return {
            **{f"_draft_block_{name}_buf": None for name in buffers},
            "_draft_verify_out_cache_loc_buf": None,
            "_draft_seq_lens_cpu_buf": None,
            "_block_pos_offsets": torch.arange(width, device=runner.device),
            "_draft_block_spec_info": spec_info(draft_token_num=width, device=runner.device),
            "_draft_sampler": None,
            "_full_embed_gpu": None,
            "_is_domino": False,
            "_mask_token_id": PLACEHOLDER,
            "_noise_embed_scale": 1.0,
            "_target_tp_rank": 0,
            "_target_worker": Stub(model_runner=target),
            "_use_triton_prepare_block": True,
            "_use_triton_compact_rebuild": True,
            "_warned_sampling_fallback": False,
            "block_size": width,
            "device": runner.device,
            "draft_model": Stub(candidate_selector=None, lilicorr=None),
            "draft_model_runner": Stub(
                forward=_stop,
                kv_index_translator=runner.kv_index_translator,
                req_to_token_pool=runner.req_to_token_pool,
                tp_group=None,
            ),
            # A server without data-parallel attention drafts on the target's ranks; by release.
            "draft_parallel_layout": Stub(tp_group=None),
            "draft_owns_attention": False,
            "draft_tp_context": lambda *_, **__: contextlib.nullcontext(),
            "draft_window_size": self._config.drafted_window or None,
            "ps": Stub(tp_rank=0),
            "lilicorr": None,
            "model_runner": target,
            "page_size": self._config.page_size,
            "selector": None,
            "server_args": runner.server_args,
            "use_compact_draft_cache": self._config.drafted_window > 0,
        }

    def fold_sampler(self) -> bool:
        """Build the sampler that graphs hold behind the model, as the worker does before it
        captures; whether there is one."""
        self.engine._draft_sampler = self.engine._maybe_build_draft_sampler()
        return self.engine._draft_sampler is not None

    def drafted_batch(self, batch: Batch) -> Any:
        """The batch that the worker hands its draft model."""
        with replaced_names([torch.Tensor], {"record_stream": lambda *_: None}):
            try:
                self.engine.forward_batch_generation(self._scheduled(batch))
            except _Drafts as drafts:
                return drafts.forward_batch
        raise AssertionError("the worker came back without a forward of its draft model")

    def sample(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows * (width - 1)] drafts, as the worker samples where no graph has done so."""
        width = self._config.draft_tokens
        rows = hidden.view(-1, width, hidden.shape[-1])[:, 1:, :]
        found: torch.Tensor = self.engine._greedy_sample_from_vocab_parallel_head(
            hidden_states=rows.reshape(-1, hidden.shape[-1]), lm_head=self.head
        )
        return found

    def _scheduled(self, batch: Batch) -> Any:
        """The scheduler's batch of running requests."""
        info = engine_module(_INFO)
        device, cached = self._runner.device, batch.cached_lens
        first = batch.input_ids[:: self._config.draft_tokens]
        return Stub(
            can_run_decode_cuda_graph=True,
            forward_mode=info.ForwardMode.DECODE,
            has_grammar=False,
            is_extend_in_batch=False,
            req_pool_indices=torch.tensor(batch.req_pool_indices, device=device),
            reqs=[],
            sampling_info=None,
            seq_lens=torch.tensor(cached, device=device),
            seq_lens_cpu=torch.tensor(cached) if self._mirrored else None,
            seq_lens_sum=int(cached.sum()) if self._mirrored else None,
            spec_info=self._input(torch.tensor(first, device=device), cached),
        )

    def _input(self, first: torch.Tensor, cached: IntArray) -> Any:
        kind = engine_module(_INPUT).DFlashDraftInputV2
        made = kind.create_idle_input(device=first.device)
        made.bonus_tokens = first
        bound = torch.tensor(self._reserved(cached), dtype=torch.int32)
        for name in _RESERVED:
            if hasattr(made, name):
                setattr(made, name, bound)
                setattr(made, name.replace("_cpu", "_sum"), int(bound.sum()))
        return made

    def _reserved(self, cached: IntArray) -> IntArray:
        """Room for two blocks behind the past, in whole pages (sglang dflash_info_v2.py,
        prepare_for_decode)."""
        page = self._config.page_size
        found: IntArray = -(-(cached + 2 * self._config.draft_tokens) // page) * page
        return found


def _stop(forward_batch: Any, *_: Any, **__: Any) -> Any:
    raise _Drafts(forward_batch)


def _on_device(weight: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_like(weight, device=device).copy_(weight)
