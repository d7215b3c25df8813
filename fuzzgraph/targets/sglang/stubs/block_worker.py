"""An engine's worker that drafts blocks and verifies them, without a server behind it.

What all such workers have in common: the target model's embedding and head, the batch that a
scheduler hands them, and the way to what they hand their draft model. Which worker it is, and what
its constructor would have loaded, is said by `dflash_worker` and `dspark_worker`.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.draft_head import head_weight
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.forward_batch.decode import given, mirror
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, index_translator
from fuzzgraph.targets.sglang.stubs.plan_stream import plan_stream
from fuzzgraph.targets.sglang.stubs.reservation import Reservation
from fuzzgraph.targets.sglang.stubs.sampling import sampling_info, top_ks
from fuzzgraph.targets.sglang.stubs.scheduler_ranks import gathered_batch
from fuzzgraph.world import VOCAB, Batch

COMMON = "sglang.srt.speculative.draft_worker_common"
_BATCH = "sglang.srt.managers.schedule_batch"
_INPUT = "sglang.srt.speculative.dflash_info_v2"
_INFO = "sglang.srt.model_executor.forward_batch_info"


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
        content, device = content_for(config), runner.device
        tokens = torch.arange(VOCAB)
        self.embedding = on_device(content.hidden_states(tokens, torch.zeros_like(tokens)), device)
        self.head = self._head(on_device(head_weight(config, content.dtype)[:VOCAB], device))
        target = Stub(
            kv_index_translator=index_translator(runner, config, requests),
            model=Stub(get_input_embeddings=lambda: self._embed, lm_head=self.head),
            model_config=runner.model_config,
            tp_rank=0,
            req_to_token_pool=requests,
            server_args=runner.server_args,
            spec_algorithm=runner.spec_algorithm,
            spec_aux_config=runner.spec_aux_config,
            token_to_kv_pool=runner.token_to_kv_pool,
        )
        self._reserved: Any = None
        """The draft input of the step that was scheduled last, as the scheduler has left it."""
        self._reservation = Reservation(config, requests, device, runner.model_config.context_len)
        self.engine = self._open(target)

    def _head(self, weight: torch.Tensor) -> Any:
        """The target model's, by which drafts are sampled."""
        return Stub(weight=weight)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding[tokens]

    def _open(self, target: Any) -> Any:
        """The engine's worker.

        Args:
            target: stands in for the model runner of the target model.
        """
        raise NotImplementedError

    @property
    def verified(self) -> int:
        """Tokens of a row that it has verified."""
        return self._config.draft_tokens

    def fold_sampler(self) -> bool:
        """Build the sampler that graphs hold behind the model, as the worker does before it
        captures; whether there is one."""
        raise NotImplementedError

    def capture_hook(self) -> Any:
        """What graphs run behind the draft model."""
        return engine_module(COMMON).make_draft_sampler_capture_hook(self.engine._draft_sampler)

    def take_graphs(self, runs: Any) -> None:
        """Have the worker ask this graph runner of its draft model before it drafts; None: it has
        none."""

    def drafts(self, batch: Batch, hidden: torch.Tensor, *, in_graph: bool) -> torch.Tensor:
        """The drafts of all rows, as the worker finds them behind its draft model.

        Args:
            hidden: [rows * tokens of a block, columns] that the draft model gave.
            in_graph: whether it ran in a graph that has sampled them.
        """
        raise NotImplementedError

    def _demand_kernels(self) -> None:
        """Raises EngineError where a kernel of the worker failed and it went on without."""

    def drafted_batch(self, batch: Batch) -> Any:
        """The batch that the worker hands its draft model.

        Raises:
            EngineError: one of the worker's kernels has failed.
        """
        with replaced_names([torch.Tensor], {"record_stream": lambda *_: None}):
            try:
                self.engine.forward_batch_generation(self._scheduled(batch))
            except _Drafts as drafts:
                self._demand_kernels()
                return drafts.forward_batch
        raise AssertionError("the worker came back without a forward of its draft model")

    def _scheduled(self, batch: Batch, *, again: bool = False) -> Any:
        """The scheduler's batch of running requests, which has its places reserved; one without
        requests where another rank has some and this one none.

        Args:
            again: whether it is that of the step that was scheduled last: nothing is reserved anew.
        """
        if not batch.raw_bs:
            return self._beside_ranks(None, batch)
        device, cached = self._runner.device, batch.cached_lens
        first = batch.input_ids[np.cumsum(batch.new_lens) - batch.new_lens]
        known = dict(
            can_run_decode_cuda_graph=True,
            device=device,
            forward_iter=0,
            forward_mode=engine_module(_INFO).ForwardMode.DECODE,
            has_grammar=False,
            is_extend_in_batch=False,
            req_pool_indices=torch.tensor(batch.req_pool_indices, device=device),
            reqs=self._reservation.requests(batch, top_ks(batch, self._config)),
            sampling_info=sampling_info(batch, self._config, device),
            seq_lens=torch.tensor(cached, device=device),
            **self._lengths_on_host(batch),
            spec_algorithm=self._runner.spec_algorithm,
            spec_info=copy.copy(self._reserved)
            if again
            else self._input(torch.tensor(first, device=device)),
            **self._reservation.fields(),
        )
        made = given(engine_module(_BATCH).ScheduleBatch, known)
        for name, value in known.items():
            if not hasattr(made, name):  # by release it is set later
                setattr(made, name, value)
        if not again:
            self._reservation.reserve(batch, lambda: self._reserve_places(made))
            self._reserved = copy.copy(made.spec_info)
        made = self._beside_ranks(made, batch)
        # Reserving leaves lengths there that are a step old; the overlap's end takes their place
        # (sglang 0.5.23 overlap_utils.py, resolve_seq_lens_cpu).
        vars(made).update(self._lengths_on_host(batch))
        return made

    def _reserve_places(self, made: Any) -> None:
        """What the scheduler reserves for its batch, on a stream of its own or not."""
        with plan_stream(self._config, self._runner.device):
            made.spec_info.prepare_for_decode(made)

    def _beside_ranks(self, local: Any, batch: Batch) -> Any:
        """The scheduler's batch behind the exchange of the ranks, where there are several."""
        if self._config.dp_size == 1:
            return local
        return gathered_batch(local, batch, self._runner, self._reservation.fields())

    def _lengths_on_host(self, batch: Batch) -> dict[str, Any]:
        """Of the scheduler's batch, as it is handed to the worker."""
        cached = batch.cached_lens
        if not self._mirrored:
            return {"seq_lens_cpu": None, "seq_lens_sum": None}
        return {"seq_lens_cpu": mirror(cached), "seq_lens_sum": int(cached.sum())}

    def _input(self, first: torch.Tensor) -> Any:
        kind = engine_module(_INPUT).DFlashDraftInputV2
        made = kind.create_idle_input(device=first.device)
        made.bonus_tokens = first
        return made


def stop(forward_batch: Any, *_: Any, **__: Any) -> Any:
    """In the place of the draft model: `drafted_batch` has what it came for."""
    raise _Drafts(forward_batch)


def on_device(weight: torch.Tensor, device: str) -> torch.Tensor:
    """A copy of it there."""
    return torch.empty_like(weight, device=device).copy_(weight)
