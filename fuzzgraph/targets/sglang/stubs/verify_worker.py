"""An engine's worker around the verify of its target model: what stands before and behind.

Its code for one step runs twice. The first run ends where the target model would; the second one
is given what the target model has computed, and goes on to the end. What drafts stands in: it gives
the drafts of the batch. So does the draft model, of which one layer's keys and values are made of
the target model's hidden states; the pool that has them is the engine's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import DTYPES
from fuzzgraph.draft_head import context_heads, context_rows, placed_keys
from fuzzgraph.errors import EngineError
from fuzzgraph.reference.sampled import verify_draws
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.block_worker import BlockWorker
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, request_pool
from fuzzgraph.targets.sglang.stubs.sampling import uniform_numbers
from fuzzgraph.targets.sglang.stubs.verify_budget import all_drafts
from fuzzgraph.world import FIRST_PAGE, Batch

OF_TOKENS = ("ragged_verify_mode", "capture_num_tokens", "max_bs")
"""What a worker asks a runner whose graphs are captured by tokens."""
_POOLS = "sglang.srt.mem_cache.memory_pool"


class _Verifies(Exception):
    """Ends the worker's code where the target model would run, with the batch that it is given."""

    def __init__(self, forward_batch: Any) -> None:
        super().__init__()
        self.forward_batch = forward_batch


class VerifyWorker(BlockWorker):
    """A worker on the runner of its target model: what is the same whatever it drafts by.

    Args:
        runner: the target model's, with its pools and its model.
        mirrored: whether the scheduler knows lengths on the host; else it has an upper bound alone.
    """

    def __init__(
        self, runner: ModelRunner, config: EngineConfig, requests: Any, *, mirrored: bool
    ) -> None:
        self._layer = Stub(layer_id=0, k_scale=None, v_scale=None)
        self.context = _context_pool(runner, config)
        self.draft_requests = requests
        """The request pool of the drafting model: with a window it has a page map of its own."""
        if config.drafted_window:
            columns = requests.req_to_token.shape[1]
            device = torch.device(runner.device)
            self.draft_requests = request_pool(config, device, columns=columns)
        self._computed: Any = None
        self._runs: Any = None
        """The target model's graph runner in this step; None where it has none."""
        self._in_graph = True
        self.planned = False
        """Whether the worker has had metadata made for the batch that it hands its target model, so
        that this makes none."""
        super().__init__(runner, config, requests, mirrored=mirrored)

    @property
    def verified(self) -> int:
        return self._config.draft_tokens

    def _draft(self, tokens: torch.Tensor, batch: Batch) -> None:
        """Have the worker find these where it looks for drafts: [rows * (width - 1)]."""
        raise NotImplementedError

    def _attention(self) -> Any:
        """The layer of the draft model, as the worker makes keys and values with it."""
        heads = context_heads(self._config)

        def rows(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = context_rows(_of_first_layer(hidden, self._config))
            return made, made.clone()

        return Stub(
            attn=self._layer,
            kv_proj_only=rows,
            apply_k_norm=lambda keys: keys,
            apply_k_rope=lambda positions, keys: placed_keys(keys, positions),
            num_kv_heads=heads,
            head_dim=self._config.v_head_dim,
            kv_size=heads * self._config.v_head_dim,
            # Keys are made layer by layer where projections are quantised and places are not the
            # engine's own: by release it looks for one or the other.
            qkv_proj=Stub(quant_method=None),
            rotary_emb=None,
        )

    @property
    def planes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values that the draft model has of tokens that stayed, by slot."""
        return self.context.k_buffer[0], self.context.v_buffer[0]

    def verified_batch(self, batch: Batch, runs: Any) -> Any:
        """The batch that the worker hands its target model, planned as the worker has it planned.

        Args:
            runs: the target model's graph runner; None where it has none.

        Raises:
            EngineError: the worker ended without one.
        """
        self._computed, self._runner.decode_cuda_graph_runner = None, runs
        self._runs = runs
        try:
            self._step(batch)
        except _Verifies as verifies:
            return verifies.forward_batch
        raise EngineError("the worker came back without a forward of its target model")

    def committed(self, batch: Batch, computed: Any, *, in_graph: bool) -> tuple[Any, torch.Tensor]:
        """What the worker gives the scheduler behind the verify; and the lengths it has published.

        Args:
            computed: what the target model gave, without padding.
            in_graph: whether it ran in a graph.

        Raises:
            EngineError: one of the worker's kernels has failed, or no lengths were published.
        """
        planned = Stub(
            can_run_graph=lambda batch: True,
            load_batch=lambda batch: None,
            **{name: getattr(self._runs, name, None) for name in OF_TOKENS},
        )
        self._computed, self._runner.decode_cuda_graph_runner = computed, planned
        self._in_graph = in_graph
        published: list[torch.Tensor] = []
        result = self._step(batch, lambda lens, **_: published.append(lens))
        self._demand_kernels()
        if not published:
            raise EngineError("the worker published no lengths, which the scheduler goes on with")
        return result, published[-1]

    def _numbers(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        """Around a step, which draws what stays where requests sample."""
        if self._config.sampling == "greedy" or not batch.raw_bs:
            return contextlib.nullcontext()
        return uniform_numbers(verify_draws(batch, self._config))

    def _step(self, batch: Batch, publish: Callable[[torch.Tensor], None] | None = None) -> Any:
        if batch.raw_bs:
            drafts = all_drafts(batch, self._config)[:, 1:].reshape(-1)
            self._draft(torch.tensor(drafts, device=self._runner.device), batch)
        unrecorded = replaced_names([torch.Tensor], {"record_stream": lambda *_: None})
        with unrecorded, self._numbers(batch):
            scheduled = self._scheduled(batch, again=publish is not None)
            return self.engine.forward_batch_generation(scheduled, publish)

    def _target(
        self, *_: Any, forward_batch: Any, skip_attn_backend_init: bool | None = None, **__: Any
    ) -> Any:
        """The target worker's forward."""
        if self._computed is None:
            self.planned = bool(skip_attn_backend_init)
            raise _Verifies(forward_batch)
        return Stub(
            logits_output=self._computed,
            can_run_cuda_graph=self._in_graph,
            routed_experts_output=None,
            indexer_topk_output=None,
        )


def drafted(hidden: torch.Tensor | None, in_graph: bool) -> Any:
    """What the runner of a draft model gives.

    Args:
        hidden: [tokens, columns] of the model.
        in_graph: whether it replayed a graph.
    """
    return Stub(logits_output=Stub(hidden_states=hidden), can_run_graph=in_graph)


def _of_first_layer(hidden: torch.Tensor, config: EngineConfig) -> torch.Tensor:
    """[tokens, Hq, Dv] of hidden states that have all layers of the target model side by side."""
    heads, columns = config.num_q_heads, config.v_head_dim
    return hidden[:, : heads * columns].view(-1, heads, columns)


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
