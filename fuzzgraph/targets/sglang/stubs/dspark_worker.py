"""The engine's DSparkWorkerV2 without a server behind it.

Its own constructor runs, with its planner, proposer and what it commits by. Stood in for is what
that would have loaded: the draft worker with its runner, and of the draft model what lies before
the engine's `DSparkDraftMixin`, which brings the Markov head.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.verify_budgets import BY_TOKENS
from fuzzgraph.content import hidden_width
from fuzzgraph.draft_head import markov_weights
from fuzzgraph.errors import NotInRelease
from fuzzgraph.reference.sampled import KEY, block_draws, draft_logits
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS, cuda_on_cpu
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module, release
from fuzzgraph.targets.sglang.stubs.block_worker import COMMON, BlockWorker, on_device, stop
from fuzzgraph.targets.sglang.stubs.dspark_kernels import run_dspark_kernels
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.sampling import ExponentialNoise
from fuzzgraph.targets.sglang.stubs.verify_budget import (
    PLANNER,
    confidences,
    profile_of_steps,
    rank_tokens,
    token_budget,
)
from fuzzgraph.targets.sglang.stubs.verify_worker import VerifyWorker, drafted
from fuzzgraph.world import PLACEHOLDER, VOCAB, Batch

WORKER = "sglang.srt.speculative.dspark_components.dspark_worker_v2"
_MODEL = "sglang.srt.models.dspark"
_CONFIG = "sglang.srt.speculative.dspark_components.dspark_config"
_PARALLEL = "sglang.srt.distributed.parallel_state_wrapper"
_SAMPLERS = (
    "sglang.srt.speculative.dspark_components.dspark_draft",
    "sglang.srt.speculative.dspark_components.dspark_draft_sampler",
)
"""Where releases decide whether graphs sample."""
_PLENTY = 80.0
"""Gigabytes of free memory, by which a server decides whether its graphs sample."""
_SETTINGS = {"markov_head_type": "vanilla", "mask_token_id": PLACEHOLDER}


class _Proposes(Exception):
    """Ends the worker's code behind its sampler, with what it has proposed."""

    def __init__(self, proposal: Any) -> None:
        super().__init__()
        self.proposal = proposal


def demand_anchors(config: EngineConfig) -> None:
    """Return if the release has draft models as the config says.

    Raises:
        NotInRelease: all of them sample at the first token of a block.
    """
    known = hasattr(engine_module(_CONFIG), "get_dspark_sample_from_anchor")
    if not (known or config.sample_from_anchor):
        raise NotInRelease(
            f"sglang {release()} has no model whose anchors are given: sample_from_anchor must be "
            "true"
        )


def described(runner: ModelRunner, config: EngineConfig, *, drafts: int, anchored: bool) -> Any:
    """A draft model's description, as a checkpoint has it: that of `runner`, and a Markov head's.

    Args:
        drafts: tokens that it drafts at once.
        anchored: whether it samples at the first token of a block too.
    """
    found = copy.deepcopy(runner.model_config.hf_config)
    settings = {**_SETTINGS, "block_size": drafts, "markov_rank": VOCAB, "vocab_size": VOCAB}
    settings |= {"hidden_size": hidden_width(config), "sample_from_anchor": anchored}
    for name, value in settings.items():
        setattr(found, name, value)
    return found


def _most_rows(config: EngineConfig) -> int:
    """Of a batch, padded rows included."""
    return max(config.req_pool_size, *config.capture_bs)


class _Backbone(torch.nn.Module):
    """What lies before the engine's part of a draft model: the layers whose keys it keeps."""

    is_nemotron_35_draft = False

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.block_size = config.block_size
        self.layers: tuple[Any, ...] = ()

    def project_target_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class DSparkWorker(BlockWorker):
    """A worker whose draft model samples each token of a block by the one before it."""

    def __init__(
        self, runner: ModelRunner, config: EngineConfig, requests: Any, *, mirrored: bool
    ) -> None:
        self.anchored = config.sample_from_anchor
        super().__init__(runner, config, requests, mirrored=mirrored)
        steps = max(1, self.verified - 1)
        self.noise = ExponentialNoise(_most_rows(config), steps, runner.device)

    def _head(self, weight: torch.Tensor) -> Any:
        return Stub(weight=weight, quant_method=None, org_vocab_size=len(weight), tp_size=1)

    @property
    def verified(self) -> int:
        return self._config.draft_tokens + self.anchored

    def _open(self, target: Any) -> Any:
        module, runner = engine_module(WORKER), self._runner
        run_dspark_kernels()
        bundle = engine_module(COMMON).DraftWorkerBundle(
            draft_worker=Stub(),
            draft_model_runner=self._draft_runner(target),
            draft_model=self._draft_model(),
            resolved_attention_backend=runner.decode_attention_backend_str,
        )
        given = {"build_draft_tp_worker": lambda **_: bundle, **self._of_the_server()}
        profile = {"load_sps_table_from_path": profile_of_steps}
        with (
            replaced_names([module], given),
            replaced_names([engine_module(PLANNER)], profile),
        ):
            made = call_with_known(
                module.DSparkWorkerV2,
                server_args=runner.server_args,
                gpu_id=runner.gpu_id,
                nccl_port=0,
                target_worker=self._target_worker(target),
                **_alone(),
            )
        self._drawn = getattr(made._proposer, "_noise", None)
        if self._drawn is not None:  # by release: else noise is drawn in place
            self._drawn = msgspec.structs.replace(self._drawn, key=KEY)
            made._proposer._noise = self._drawn
        return made

    def _of_the_server(self) -> dict[str, Any]:
        """What else its constructor finds otherwise on a GPU."""
        return {}

    def _target_worker(self, target: Any) -> Any:
        """The worker of the target model."""
        return Stub(model_runner=target, device=self._runner.device, random_seed=0)

    def _draft_runner(self, target: Any) -> Any:
        """What stands in for the runner of the draft model."""
        runner = self._runner
        return Stub(
            attn_backend=runner.attn_backend,
            capture_tail_hooks=[],
            decode_cuda_graph_runner=None,
            device=runner.device,
            forward=stop,
            kv_index_translator=runner.kv_index_translator,
            model_config=Stub(hf_config=self._described()),
            req_to_token_pool=runner.req_to_token_pool,
            token_to_kv_pool=runner.token_to_kv_pool,
        )

    def _described(self) -> Any:
        drafts, anchored = self.verified - 1, self.anchored
        return described(self._runner, self._config, drafts=drafts, anchored=anchored)

    def _draft_model(self) -> Any:
        """The draft model, as far as it does not lie on a graph runner: the engine's head."""
        mixin = engine_module(_MODEL).DSparkDraftMixin
        made = type("DraftModel", (mixin, _Backbone), {})(self._described())
        head, dtype, device = made.markov_head, self.embedding.dtype, self._runner.device
        # A parameter is another tensor. As long as the first one lives, nobody has to search for
        # what else holds its memory.
        self._weights = [on_device(weight.to(dtype), device) for weight in markov_weights()]
        for layer, weight in zip((head.markov_w1, head.markov_w2), self._weights, strict=True):
            layer.weight = torch.nn.Parameter(weight, False)
        return made

    def fold_sampler(self) -> bool:
        engine, probed = self.engine, {"get_available_gpu_memory": lambda *_, **__: _PLENTY}
        modules = [engine_module(name) for name in _SAMPLERS if has_module(name)]
        with cuda_on_cpu({**DEVICE, **STREAMS}), replaced_names(modules, probed):
            engine._draft_sampler = call_with_known(
                engine._maybe_build_draft_sampler, available_memory_gb=_PLENTY
            )
        engine._proposer.attach_draft_sampler(engine._draft_sampler)
        return engine._draft_sampler is not None

    def capture_hook(self) -> Any:
        """What graphs run behind the draft model: the engine's hook, with our noise."""
        hook = super().capture_hook()

        def drawn(*given: Any, **named: Any) -> Any:
            with self.noise.drawn():
                return hook(*given, **named)

        return drawn

    def give_numbers(self, batch: Batch) -> None:
        """Have the next run of drafts draw by the numbers of this step."""
        if self._config.sampling == "greedy":
            return
        draws = block_draws(batch, self._config)
        self.noise.give(torch.from_numpy(draws.noise))
        if self._drawn is not None:
            self._drawn.offset.fill_(draws.count)

    @property
    def counts_blocks(self) -> bool:
        """Whether noise follows from a counter of the device, so that a block that does not count
        itself has the same noise as the next one."""
        return self._drawn is not None

    def counted_blocks(self, batch: Batch) -> torch.Tensor:
        """[raw_bs] blocks that were counted since `give_numbers`, the same for all rows."""
        assert self._drawn is not None
        counted: torch.Tensor = self._drawn.offset - block_draws(batch, self._config).count
        return counted.expand(batch.raw_bs)

    def take_graphs(self, runs: Any) -> None:
        self.engine.draft_model_runner.decode_cuda_graph_runner = runs

    def drafted_batch(self, batch: Batch) -> Any:
        self.give_numbers(batch)
        with self.noise.drawn():
            return super().drafted_batch(batch)

    def drafts(self, batch: Batch, hidden: torch.Tensor, *, in_graph: bool) -> torch.Tensor:
        proposer, propose = self.engine._proposer, self.engine._proposer.propose
        given = drafted(hidden, in_graph)

        def through(**named: Any) -> Any:
            raise _Proposes(propose(**named))

        runs = {"forward": lambda *_, **__: given}
        drafter = self.engine.draft_model_runner
        with replaced_names([proposer], {"propose": through}), replaced_names([drafter], runs):
            try:
                self.drafted_batch(batch)
            except _Proposes as found:
                tokens: torch.Tensor = found.proposal.draft_block.draft_tokens
                return tokens.flatten()
        raise AssertionError("the worker came back without a proposal")


class DSparkVerifyWorker(VerifyWorker, DSparkWorker):
    """DSpark's, which has an empty sampler of its own: drafts are put where that leaves them."""

    def _open(self, target: Any) -> Any:
        self._runner.model.lm_head = self.head
        self._runner.capture_tail_hooks = []  # a worker whose graphs accept drafts puts one there
        self.engine = super()._open(self._runner)
        if self.fold_sampler():
            self._make_room(self.engine._draft_sampler)
        return self.engine

    def _make_room(self, sampler: Any) -> None:
        """Drafts of batches above the ladder stand in there too, which its graphs have not."""
        rows = _most_rows(self._config)
        if hasattr(sampler, "params"):  # by release
            kind = type(sampler.params)
            sampler.params = kind(*(each.new_zeros(rows) for each in sampler.params))
        elif getattr(sampler, "folded_sampling", False):
            sampler.temperatures = sampler.temperatures.new_ones(rows)
            sampler.greedy_mask = sampler.greedy_mask.new_ones(rows)

    def _target_worker(self, target: Any) -> Any:
        found = super()._target_worker(target)
        found.forward_batch_generation = self._target
        return found

    def _draft_runner(self, target: Any) -> Any:
        found = super()._draft_runner(target)
        found.token_to_kv_pool = self.context
        found.forward = self._drafts
        found.decode_cuda_graph_runner = Stub(can_run_graph=lambda _: True)
        return found

    def _drafts(self, forward_batch: Any, *_: Any, **__: Any) -> Any:
        """In the place of the draft model's graph: hidden states that nothing samples from."""
        rows = len(forward_batch.input_ids)
        return drafted(torch.zeros(rows, 1, device=self._runner.device), in_graph=True)

    def _draft_model(self) -> Any:
        made = super()._draft_model()
        made.layers = (Stub(self_attn=self._attention()),)
        return made

    def _of_the_server(self) -> dict[str, Any]:
        """A budget has graphs accept drafts, on a GPU; beside other ranks graphs by tokens are for
        draft models with experts alone."""
        config = self._config
        if config.verify_budget == "none":
            return {}
        experts = config.dp_size > 1 and config.verify_budget in BY_TOKENS
        return {"is_cuda": lambda: True, "draft_is_deepseek_v4": lambda **_: experts}

    def _scheduled(self, batch: Batch, *, again: bool = False) -> Any:
        # A server's runner does not change, by which layouts of whole blocks are kept.
        getattr(self.engine._verify_planner, "_uniform_layout_cache", {}).clear()
        made = super()._scheduled(batch, again=again)
        if batch.raw_bs:
            made.spec_info.verify_token_budget = token_budget(batch, self._config)
        if self._config.dp_size > 1 and self._config.verify_budget == "compact":
            made.global_spec_verify_tier_num_tokens = rank_tokens(batch, self._config)
        return made

    def _draft(self, tokens: torch.Tensor, batch: Batch) -> None:
        sampler = self.engine._draft_sampler
        sampler.out = tokens
        if self._config.verify_budget != "none":
            sure = confidences(batch, self._config).to(tokens.device)
            sampler.confidence_out = sampler.confidence_raw_out = sure
        if self.engine._verify_epilogue is not None:
            self.engine._verify_epilogue.draft_tokens_buf[: len(tokens)].copy_(tokens[: self._room])
        shape = (batch.raw_bs, self._config.draft_tokens - 1, VOCAB)
        logits = self.embedding.new_zeros(shape)
        if self._config.sampling != "greedy":
            logits = draft_logits(batch).to(self.embedding)
        for name, given in (("step_logits", logits), ("corrected_out", logits.flatten(0, 1))):
            if hasattr(sampler, name):  # by release
                setattr(sampler, name, given)

    @property
    def _room(self) -> int:
        """Drafts of the largest graph."""
        return len(self.engine._verify_epilogue.draft_tokens_buf)


def _alone() -> dict[str, Any]:
    """The ranks of a server of one, for releases whose workers are given them."""
    if not has_module(_PARALLEL):
        return {}
    return {"ps": engine_module(_PARALLEL).ParallelState.trivial()}
