"""The engine's DFlashWorkerV2 around the verify of its target model: what stands before and behind.

Its code for one step runs twice. The first run ends where the target model would; the second one
is given what the target model has computed, and goes on to the end. What drafts stands in: it gives
the drafts of the batch. So does the draft model, of which one layer's keys and values are made of
the target model's hidden states; the pool that has them is the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import DTYPES
from fuzzgraph.draft_head import context_heads, context_rows, placed_keys
from fuzzgraph.errors import EngineError
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.forward_batch.decode import given
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.block_worker import BlockWorker
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import FIRST_PAGE, Batch

_BATCH = "sglang.srt.managers.schedule_batch"
_POOLS = "sglang.srt.mem_cache.memory_pool"
_KERNELS = ("_use_triton_prepare_block", "_use_triton_accept_bonus")
"""The worker goes on without a kernel of its own that has failed once, and clears these."""


class _Verifies(Exception):
    """Ends the worker's code where the target model would run, with the batch that it is given."""

    def __init__(self, forward_batch: Any) -> None:
        super().__init__()
        self.forward_batch = forward_batch


class VerifyWorker(BlockWorker):
    """A worker on the runner of its target model.

    Args:
        runner: the target model's, with its pools and its model.
        mirrored: whether the scheduler knows lengths on the host; else it has an upper bound alone.
    """

    def __init__(self, runner: ModelRunner, config: EngineConfig, *, mirrored: bool) -> None:
        self._layer = Stub(layer_id=0, k_scale=None, v_scale=None)
        self.context = _context_pool(runner, config)
        self._computed: Any = None
        super().__init__(runner, config, runner.req_to_token_pool, mirrored=mirrored)

    def _attributes(self, target: Any) -> dict[str, Any]:
        runner = self._runner
        worker = Stub(
            model_runner=runner, device=runner.device, forward_batch_generation=self._target
        )
        drafts = Stub(
            forward=lambda *_, **__: Stub(
                logits_output=Stub(hidden_states=None), can_run_graph=True
            ),
            kv_index_translator=target.kv_index_translator,
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

    def _attention(self) -> Any:
        """The layer of the draft model, as the worker makes keys and values with it."""
        shape = (-1, self._config.num_q_heads, self._config.v_head_dim)

        def rows(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = context_rows(hidden.view(shape))
            return made, made.clone()

        return Stub(
            attn=self._layer,
            kv_proj_only=rows,
            apply_k_norm=lambda keys: keys,
            apply_k_rope=lambda positions, keys: placed_keys(keys, positions),
            num_kv_heads=context_heads(self._config),
            head_dim=self._config.v_head_dim,
        )

    @property
    def planes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values that the draft model has of tokens that stayed, by slot."""
        return self.context.k_buffer[0], self.context.v_buffer[0]

    def verified_batch(self, batch: Batch, runs: Any) -> Any:
        """The batch that the worker hands its target model, planned as the worker has it planned.

        Args:
            runs: the target model's graph runner; None where it has none.
        """
        self._computed, self._runner.decode_cuda_graph_runner = None, runs
        try:
            self._step(batch)
        except _Verifies as verifies:
            return verifies.forward_batch
        raise AssertionError("the worker came back without a forward of its target model")

    def committed(self, batch: Batch, computed: Any) -> tuple[Any, torch.Tensor]:
        """What the worker gives the scheduler behind the verify; and the lengths it has published.

        Args:
            computed: what the target model gave, without padding.

        Raises:
            EngineError: one of the worker's kernels has failed.
        """
        planned = Stub(can_run_graph=lambda batch: True, load_batch=lambda batch: None)
        self._computed, self._runner.decode_cuda_graph_runner = computed, planned
        published: list[torch.Tensor] = []
        result = self._step(batch, published.append)
        for name in _KERNELS:
            if not getattr(self.engine, name):
                raise EngineError(f"a kernel of DFLASH's worker failed, which cleared {name}")
        return result, published[-1]

    def _step(self, batch: Batch, publish: Callable[[torch.Tensor], None] | None = None) -> Any:
        drafts = batch.input_ids.reshape(batch.raw_bs, -1)[:, 1:].reshape(-1)
        self.engine._draft_sampler = Stub(out=torch.tensor(drafts, device=self._runner.device))
        with replaced_names([torch.Tensor], {"record_stream": lambda *_: None}):
            return self.engine.forward_batch_generation(self._scheduled(batch), publish)

    def _target(self, *_: Any, forward_batch: Any, **__: Any) -> Any:
        """The target worker's forward."""
        if self._computed is None:
            raise _Verifies(forward_batch)
        return Stub(
            logits_output=self._computed,
            can_run_cuda_graph=True,
            routed_experts_output=None,
            indexer_topk_output=None,
        )

    def _scheduled(self, batch: Batch) -> Any:
        known = vars(super()._scheduled(batch))
        reqs = [
            Stub(rid=str(request), lora_id=None, token_type_ids=None) for request in batch.requests
        ]
        made = given(
            engine_module(_BATCH).ScheduleBatch,
            {**known, "reqs": reqs, "device": self._runner.device},
        )
        for name, value in known.items():
            if name != "reqs" and not hasattr(made, name):
                setattr(made, name, value)
        made.spec_algorithm = self._runner.spec_algorithm
        return made


def _context_pool(runner: ModelRunner, config: EngineConfig) -> Any:
    """The engine's own pool of a draft model with one layer, with the slots of its target's."""
    slots = (config.kv_pool_pages + FIRST_PAGE - 1) * config.page_size
    return engine_module(_POOLS).MHATokenToKVPool(
        slots,
        page_size=config.page_size,
        dtype=DTYPES[config.dtype],
        head_num=context_heads(config),
        head_dim=config.v_head_dim,
        layer_num=1,
        device=runner.device,
        enable_memory_saver=False,
    )
