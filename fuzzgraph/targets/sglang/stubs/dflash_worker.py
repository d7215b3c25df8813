"""The engine's DFlashWorkerV2 without a server behind it.

Its constructor loads a draft model. All that its code asks of it up to the draft model's forward is
here: what lies in other objects stands in for them, its own buffers are made by itself.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from fuzzgraph.errors import EngineError
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.block_worker import COMMON, BlockWorker, stop
from fuzzgraph.targets.sglang.stubs.model_runner import index_translator
from fuzzgraph.targets.sglang.stubs.verify_worker import VerifyWorker, drafted
from fuzzgraph.world import PLACEHOLDER, Batch

WORKER = "sglang.srt.speculative.dflash_worker_v2"
_KERNELS = ("_use_triton_prepare_block", "_use_triton_accept_bonus")
"""The worker goes on without a kernel of its own that has failed once, and clears these."""


class DFlashWorker(BlockWorker):
    """A worker whose draft model fills the places behind a block's first token."""

    def _open(self, target: Any) -> Any:
        engine = object.__new__(engine_module(WORKER).DFlashWorkerV2)
        vars(engine).update(self._attributes(target))
        return engine

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
            "_full_embed_gpu": self.embedding if self._config.dp_size > 1 else None,
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
                forward=stop,
                kv_index_translator=runner.kv_index_translator,
                req_to_token_pool=runner.req_to_token_pool,
                tp_group=None,
            ),
            "draft_parallel_layout": self._draft_layout(),
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

    def _draft_layout(self) -> Any:
        """By release: with data-parallel attention drafts run on the ranks that share a rank's
        heads, else on the target's."""
        module = engine_module(WORKER)
        if self._config.dp_size == 1 or not hasattr(module, "resolve_draft_parallel_layout"):
            return Stub(tp_group=None)
        described = module.model_draft_parallel_spec(
            None, spec_algorithm=self._runner.spec_algorithm
        )
        return module.resolve_draft_parallel_layout(described, collapse_cp=True)

    def fold_sampler(self) -> bool:
        self.engine._draft_sampler = self.engine._maybe_build_draft_sampler()
        return self.engine._draft_sampler is not None

    def _demand_kernels(self) -> None:
        for name in _KERNELS:
            if not getattr(self.engine, name, True):
                raise EngineError(f"a kernel of DFLASH's worker failed, which cleared {name}")

    def drafts(self, batch: Batch, hidden: torch.Tensor, *, in_graph: bool) -> torch.Tensor:
        width = self._config.draft_tokens
        rows = hidden.view(-1, width, hidden.shape[-1])[:, 1:, :]
        if in_graph:
            kept: torch.Tensor = self.engine._draft_sampler.out[: len(rows) * (width - 1)]
            return kept
        found: torch.Tensor = self.engine._greedy_sample_from_vocab_parallel_head(
            hidden_states=rows.reshape(-1, hidden.shape[-1]), lm_head=self.head
        )
        return found


class DFlashVerifyWorker(VerifyWorker, DFlashWorker):
    """DFLASH's, whose drafts lie where the sampler of its graphs would have left them."""

    def _attributes(self, target: Any) -> dict[str, Any]:
        runner = self._runner
        worker = Stub(
            model_runner=runner, device=runner.device, forward_batch_generation=self._target
        )
        drafts = Stub(
            forward=lambda *_, **__: drafted(None, in_graph=True),
            kv_index_translator=index_translator(runner, self._config, self.draft_requests)
            if self._config.drafted_window
            else target.kv_index_translator,
            req_to_token_pool=self.draft_requests,
            token_to_kv_pool=self.context,
            tp_group=None,
        )
        model = Stub(
            candidate_selector=None,
            lilicorr=None,
            layers=(Stub(self_attn=self._attention()),),
            project_target_hidden=lambda hidden: hidden,
            prepare_context_hidden_for_kv=lambda layer, hidden: hidden,
        )
        return {
            **super()._attributes(target),
            "_accept_bonus_buffer_cap": 0,
            "_accept_bonus_buffer_slot": 0,
            "_block_verification": False,
            "_draft_probs_buf": None,
            "_fused_kv_helper": None,
            "_need_mamba_verify_commit": False,
            "_selector_sample": None,
            "_target_logits_processor": None,
            "_target_worker": worker,
            "_tp_sync": Stub(sync=lambda *_: None),
            "_use_fused_kv_materialize": False,
            "_use_triton_accept_bonus": True,
            "draft_model": model,
            "draft_model_runner": drafts,
            "model_runner": runner,
        }

    def _draft(self, tokens: torch.Tensor, batch: Batch) -> None:
        self.engine._draft_sampler = Stub(out=tokens)
