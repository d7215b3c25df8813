"""The verify of DFLASH's blocks, and what follows it in the same step: targets
`sglang-dflash-verify-*`.

The worker's own code makes the target model's batch and plans it, on graphs of
`DecodeCudaGraphRunner`. Behind the replay the same code takes the drafts that stay, works out
lengths, and makes keys and values of the draft model from the hidden states of the tokens that
stayed. The target model is one layer of the engine's own `RadixAttention`, and predicts what the
case says; its hidden states are what attention has computed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.draft_head import marked
from fuzzgraph.errors import NotInRelease
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.committed import NO_TOKEN
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import (
    AttentionModel,
    Written,
    demand_forward,
    hidden_in,
    in_forward_context,
)
from fuzzgraph.targets.sglang.backends.attention_backend import (
    AttentionBackend,
    BackendSession,
    BackendTarget,
)
from fuzzgraph.targets.sglang.excuses.blocks import VERIFY_EXCUSES
from fuzzgraph.targets.sglang.release import demand_release, engine_module, is_before
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.dflash import BACKENDS, FROM, host_lengths, lengths_on_host
from fuzzgraph.targets.sglang.runners.verify_beside_ranks import (
    BESIDE_RANKS,
    Verified,
    verify_beside_ranks,
)
from fuzzgraph.targets.sglang.stubs.dflash_worker import WORKER, DFlashVerifyWorker
from fuzzgraph.targets.sglang.stubs.verify_worker import VerifyWorker
from fuzzgraph.world import FIRST_PAGE, Batch

_LOGITS = "sglang.srt.layers.logits_processor"


class TargetModel(AttentionModel):
    """A target model of one layer that predicts what the case says behind each token."""

    def __init__(self, config: EngineConfig, device: torch.device, rope: Any = "apart") -> None:
        super().__init__(config, device, rope)
        slots = (config.kv_pool_pages + FIRST_PAGE) * config.page_size
        self._follows = torch.zeros(slots, dtype=torch.int64, device=device)
        self.lm_head = Stub(weight=None)

    def get_input_embeddings(self) -> Any:
        """What the worker makes its draft model's inputs with, which stands in here."""
        return lambda tokens: self.embed[tokens]

    def past(self, batch: Batch) -> Iterable[Written]:
        """What the model will predict behind each token, by the slot of the token."""
        yield from super().past(batch)
        slots = torch.from_numpy(batch.slot_mapping).to(self._follows.device)
        yield self._follows, slots, torch.from_numpy(batch.predicted).to(self._follows.device)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """Logits of all tokens, and as hidden states what attention computed."""
        demand_forward(input_ids, positions, forward_batch)
        attended = self.attend(input_ids, positions, forward_batch)
        predicted = self._follows[forward_batch.out_cache_loc]
        return engine_module(_LOGITS).LogitsProcessorOutput(
            next_token_logits=marked(predicted, torch.float32), hidden_states=attended
        )


class BlockVerifyTarget(BackendTarget):
    """DFLASH's verify on one backend of the sglang release that this process holds."""

    excuses = VERIFY_EXCUSES

    algorithm = "DFLASH"
    worker = WORKER
    """The module that has it."""
    translates_on: tuple[str, ...] = ("fa3", "flashinfer", "triton", "trtllm_mha")
    """Backends with which servers have it on virtual pages (sglang 0.5.23 kv_cache_hook.py,
    handle_unified_memory_pool)."""

    def __init__(self, name: str, backend: str) -> None:
        super().__init__(name, BACKENDS[backend], "target_verify")
        self.about = f"{self.backend.name}, {self.algorithm}'s verify and the commit behind it"
        self.also_stood_in_for = (*self.backend.stood_in_for, "the draft model")
        self.capabilities = self.capabilities.replace(
            plan_streams=True,
            max_draft_tokens=16,
            max_spec_topk=1,
            max_spec_steps=1,
            max_tp_size=1,
            two_batch_overlap=False,
            backends_beside=("none",),
            trtllm_kernels=("trtllm_gen",),
            logit_caps=(0,),
            row_mixings=("none",),
            kv_dtypes=("auto",),
            samplings=("greedy", "target"),
            drafted_windows=True,
            cpu_seq_lens=True,
            virtual_pages=self.backend.unified and self.backend.name in self.translates_on,
            capture_beyond_pool=False,
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BlockVerifySession:
        return BlockVerifySession(config, graphs, self.backend)

    def modules(self) -> tuple[str, ...]:
        demand_release(FROM, "has other parts of a worker that verifies blocks", self.name)
        return (*super().modules(), self.worker, *BESIDE_RANKS)


class BlockVerifySession(BackendSession):
    """The worker, its target model's runner, and the backend on which that model attends."""

    algorithm = "DFLASH"
    worker: type[VerifyWorker] = DFlashVerifyWorker
    serves_ranks_from = (0, 5, 23)
    """The first release whose servers have it beside other data-parallel ranks with CUDA."""
    idle_guard = (
        "sglang dflash_worker_v2.py, forward_batch_generation: all ranks verify without a graph "
        "where one of them is idle"
    )
    """The worker's rule by which a step beside a rank without requests takes no graph."""
    _worker: VerifyWorker
    _beside: Verified | None = None
    """The last run, where a server runs it without a graph beside other ranks."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: AttentionBackend) -> None:
        if config.dp_size > 1 and is_before(self.serves_ranks_from):
            first = ".".join(map(str, self.serves_ranks_from))
            raise NotInRelease(
                f"servers have {self.algorithm} beside data-parallel ranks from sglang {first} on"
            )
        arguments = (("speculative_algorithm", self.algorithm), *kind.arguments)
        super().__init__(config, graphs, replace(kind, model=TargetModel, arguments=arguments))
        mirrored = lengths_on_host(self.backend, config)
        fill = kind.fill(config)
        self.fields = tuple(self._as_verified(each, mirrored, fill) for each in self.fields)

    def _as_verified(self, field: Field, mirrored: bool, fill: int) -> Field:
        return host_lengths(field, mirrored, fill) if field.name == "seq_lens_cpu" else field

    def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
        mirrored = lengths_on_host(self.backend, self._config)
        runner = self._model_runner
        requests = runner.req_to_token_pool
        self._worker = self.worker(runner, self._config, requests, mirrored=mirrored)
        return super()._open_runner(graphs)

    def _translate(self, batch: Batch) -> Any:
        self._batch = batch
        return self._worker.verified_batch(batch, self._runs(batch))

    def _runs(self, batch: Batch) -> Any:
        """The graph runner that the worker finds; None for a server without graphs."""
        return None if self.ran_eagerly else self.runner._engine

    def replay(self, batch: Batch) -> None:
        super().replay(batch)
        if not self.ran_eagerly and batch.raw_bs:
            with self.engine_runs(batch):
                self._commit(self.runner.handed_out(self._last_batch, self._outputs))

    @property
    def _padded_eagerly(self) -> bool:
        return self._beside is not None

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        if self.ran_eagerly and self._beside is not None:
            return self._beside.rows, self._beside.tokens
        return super().padded_size(batch)

    def declined(self, batch: Batch) -> str:
        idle = self._config.dp_size > 1 and not batch.rank_sizes.all()
        return self.idle_guard if idle and self.idle_guard else super().declined(batch)

    def _forward_eagerly(self) -> None:
        """The worker has the metadata made before it calls its target model."""
        given = self._last_batch
        assert self._attention is not None
        self._beside = self._outputs = None
        if self._config.dp_size > 1 and self._takes_no_graph(self._batch):
            planned = self._worker.planned
            self._beside = verify_beside_ranks(
                given, self._model_runner, self._attention, planned=planned
            )
            self._outputs, outputs = self._beside.computed, self._beside.outputs
        elif given.batch_size:
            if not self._worker.planned:
                self.backend.init_forward_metadata(given)
            with in_forward_context(self.backend, given):
                self._outputs = self._attention.forward(given.input_ids, given.positions, given)
            outputs = copy.copy(self._outputs)  # the worker drops hidden states when it is done
        if self._batch.raw_bs:
            self._commit(outputs)

    def _commit(self, computed: Any) -> None:
        """What the worker does with what its target model gave."""
        planes = self._worker.planes
        for plane in planes:
            plane.zero_()
        in_graph = not self.ran_eagerly
        result, published = self._worker.committed(self._batch, computed, in_graph=in_graph)
        self._committed = result, published

    @property
    def roots(self) -> dict[str, object]:
        own = {"worker": vars(self._worker.engine), "draft_kv_pool": self._worker.context}
        own["draft_req_to_token_pool"] = self._worker.draft_requests
        return {**super().roots, **own}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        found = super().promised_outputs(mode)
        return (*found, "commits", "committed_tokens", "draft_context") if found else ()

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        if not self._batch.raw_bs:
            return {}
        result, published = self._committed
        counts, rows = result.accept_lens, self._batch.raw_bs
        slots = torch.from_numpy(self._batch.slot_mapping).to(counts.device)
        context = torch.stack([plane[slots] for plane in self._worker.planes], 1)
        tokens = result.next_token_ids.view(rows, -1)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        stays = places < counts[:, None]
        # A row has a place for each draft of a whole block, however many tokens were verified.
        verified = places < torch.from_numpy(self._batch.new_lens).to(counts.device)[:, None]
        columns = (counts, published, result.next_draft_input.bonus_tokens, self._strays(slots))
        return {
            **hidden_in(self._outputs, self._config),
            "commits": torch.stack([column.long() for column in columns], 1),
            "committed_tokens": torch.where(stays, tokens, NO_TOKEN)[verified],
            "draft_context": context,
        }

    def _strays(self, slots: torch.Tensor) -> torch.Tensor:
        """[rows] how many slots of no token of the batch have something, the same for all rows."""
        keys, values = (plane.flatten(1).ne(0).any(1) for plane in self._worker.planes)
        written = keys | values
        written[slots] = False
        return written.sum().expand(self._batch.raw_bs)
