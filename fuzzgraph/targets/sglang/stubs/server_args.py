"""The release's own server arguments, filled from a case's config, and made the process's.

Their constructor reads a model from disk and probes the machine, so the engine's defaults are taken
without it. Releases differ in where their code looks the arguments up: in a global (up to 0.5.16),
or in a context that the arguments are published to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang import split_backends, two_batches
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.all_ranks import all_ranks
from fuzzgraph.targets.sglang.stubs.tp_groups import become_rank, rank_of, size_gathered_rows

_CONTEXT = "sglang.srt.runtime_context"
_ARGUMENTS = "sglang.srt.server_args"
_SIZES = "sglang.srt.model_executor.cuda_graph_config"


def context_len(config: EngineConfig) -> int:
    """The context of the case's engine, in tokens.

    A request ends at the context; a verify checks drafts past it (the pool has room), drafts grow
    within it. So do the places of a draft-extend: it starts from what a verify of four tokens at
    most started from, which a server keeps four tokens below the context (sglang 0.5.23
    tp_worker.py and scheduler.py, max_req_len). Drafted blocks end within the context, as those of
    requests do that have fewer tokens to generate.
    """
    verifies = "target_verify" in config.modes and config.drafted_blocks == "none"
    past = config.draft_tokens - 1 if verifies else 0
    grown = config.spec_steps if "draft" in config.modes else 0
    grown += config.draft_tokens if "draft_extend" in config.modes else 0
    # Tokens of its encoder count among those of a request.
    return config.max_context_len + config.max_encoder_len - past + grown


def kv_cache_dtype(config: EngineConfig) -> str:
    """As `--kv-cache-dtype` spells it."""
    return {"auto": "auto", "nvfp4": "nvfp4"}.get(config.kv_dtype, "fp8_e4m3")


class Configuration:
    """Server arguments of one session; sessions share the process, so each one uses its own.

    Args:
        config: of the case.
        device: of the engine.
        backend: name of the attention backend.
        speculative: whether the server speculates, with what the config says.
        prefill: which kind of graphs prefills get, by the engine's name; "" for none.
        more: arguments beyond those; a name that the release does not know is left out.
    """

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        *,
        backend: str,
        speculative: bool,
        prefill: str = "",
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.config = config
        self.everyone = all_ranks(config)
        self._brought: list[Callable[[], None]] = []
        values: dict[str, Any] = {
            "model_path": "none",
            "device": device.type,
            "page_size": config.page_size,
            "attention_backend": backend,
            "kv_cache_dtype": kv_cache_dtype(config),
            "max_running_requests": config.req_pool_size,
            "chunked_prefill_size": -1,
            "enable_cudagraph_gc": True,  # spares a pass over the whole heap at every capture
            "triton_attention_num_kv_splits": 2,
        }
        if config.dp_size > 1:
            values |= _data_parallel(config)
        elif config.attn_tp_size > 1:
            # Dense layers of one rank make attention's input scattered, without data parallelism.
            values |= {"tp_size": config.attn_tp_size, "moe_dense_tp_size": 1}
            values |= {"ep_size": config.attn_tp_size}
        if speculative:
            values |= {
                "speculative_algorithm": "NGRAM" if config.ngram_drafts else "EAGLE",
                # Without branches the two follow from each other, as the engine sees to.
                "speculative_num_steps": config.draft_tokens - 1
                if "draft_extend" in config.modes
                else config.spec_steps,
                "speculative_eagle_topk": config.spec_topk,
                "speculative_num_draft_tokens": config.draft_tokens,
            }
        capture_bs = list(config.capture_bs) or [1]
        if has_module(_SIZES):
            sizes = engine_module(_SIZES)
            phase = sizes.PhaseConfig(backend="full", bs=capture_bs, max_bs=capture_bs[-1])
            self._sizes = sizes.CudaGraphConfig(decode=phase)
            if prefill:
                tokens = list(config.capture_tokens)
                slots = {"full_prefill_max_req": config.prefill_slots} if prefill == "full" else {}
                self._sizes.prefill = sizes.PhaseConfig(
                    backend=prefill, bs=tokens, max_bs=tokens[-1], **slots
                )
            values["cuda_graph_config"] = self._sizes
        else:
            values |= {"cuda_graph_bs": capture_bs, "cuda_graph_max_bs": capture_bs[-1]}
            if prefill:
                values |= {
                    "piecewise_cuda_graph_tokens": list(config.capture_tokens),
                    "piecewise_cuda_graph_compiler": "eager",
                }
        if config.virtual_pages:
            more = {**more, "enable_unified_memory": True, "enable_page_major_kv_layout": True}
        more = {**_tracking(config), **_rings(config), **more}
        values |= two_batches.arguments(config)
        if config.even_ranks:
            values |= {"moe_a2a_backend": "pplx"}
        values |= split_backends.arguments(config, backend)
        values |= {name: value for name, value in more.items() if is_argument(name)}
        self.exchanges = "moe_a2a_backend" in values
        """Whether experts exchange tokens by kernels of a library."""
        self.server_args = _arguments(values)
        if config.state_track_interval and "target_verify" in config.modes:
            # Behind multiples of its kernels' chunk, of 64 tokens, and of the interval a server
            # keeps states; here a chunk is a page (sglang runtime_context.py `mamba_track_grid`).
            self.server_args._mamba_cache_chunk_size = config.page_size
        self.use()

    def describe(self, model: Any) -> None:
        """Tell the arguments of their model, which they would read from disk when asked. Its name
        differs by release, and some let nobody set one (model_override_base.py `model_config_of`,
        ServerArgs)."""
        vars(self.server_args).update(_model_config=model, model_config=model)

    def use(self) -> None:
        """Make these the arguments, and their ranks the ranks, of the process.

        Nothing where they are already: to publish them takes recent releases longer than a step.
        """
        if _in_use[-1:] == [self]:
            return
        # What experts are set to outlives a session whose tokens they exchange.
        exchanged = any(each.exchanges for each in (*_in_use, self))
        _in_use[:] = [self]
        become_rank(self.config, self.everyone)
        if self.config.dp_size > 1:
            size_gathered_rows(self.config, self.server_args.device)
        self._publish()
        if exchanged:
            two_batches.follow_arguments(self.server_args)
        for put in self._brought:
            put()

    def bring(self, put: Callable[[], None]) -> None:
        """Have this called whenever the session is used again after another one: it puts back what
        the session has of its own in modules of the engine."""
        self._brought.append(put)

    def _publish(self) -> None:
        """Where the release's code looks them up."""
        context: Any = engine_module(_CONTEXT) if has_module(_CONTEXT) else None
        if not hasattr(context, "publish"):
            engine_module(_ARGUMENTS).set_global_server_args_for_scheduler(self.server_args)
            return
        if hasattr(context.get_parallel(), "clear_stamp"):  # of the session before
            context.get_parallel().clear_stamp()
        context.publish(self.server_args, role="scheduler")
        if hasattr(context.get_parallel(), "override_permanently"):
            context.get_parallel().override_permanently(**rank_of(self.config, self.everyone))
        graph: Any = getattr(context.get_exec(), "graph", None)
        if hasattr(graph, "_set"):
            graph._set("cuda_graph_config", self._sizes)


_in_use: list[Configuration] = []
"""The one that was made the process's last."""


def _data_parallel(config: EngineConfig) -> dict[str, Any]:
    """Attention is data parallel and experts are spread over all ranks; `max_running_requests` is
    said of each rank, as the server divides its own. From 0.5.22 on the size has a name of its own.
    Each rank computes the logits of its own rows, so that a model's head sends nothing.
    """
    ranks = config.dp_size * config.attn_tp_size
    shared = {"tp_size": ranks, "ep_size": ranks, "enable_dp_lm_head": True}
    if is_argument("attn_dp_size"):
        return {**shared, "attn_dp_size": config.dp_size}
    return {**shared, "dp_size": config.dp_size, "enable_dp_attention": True}


def _tracking(config: EngineConfig) -> dict[str, Any]:
    """How states are kept for a prefix cache; the strategy is called either way, by release."""
    if not config.state_track_interval:
        return {}
    strategy = ("mamba_scheduler_strategy", "mamba_radix_cache_strategy")
    return {
        **dict.fromkeys(strategy, "extra_buffer"),
        "mamba_track_interval": config.state_track_interval,
    }


def _rings(config: EngineConfig) -> dict[str, Any]:
    """What steps bring to states lies in rings; states are written where a prefix cache without
    slots of its own (`no_buffer`, the default) may copy them."""
    if not config.state_ring_len:
        return {}
    interval, verifies = config.state_flush_interval, config.modes == ("target_verify",)
    return {
        f"enable_linear_replayssm{'_spec' if verifies else ''}": True,
        "linear_replayssm_cache_len": config.state_ring_len,
        **({"mamba_track_interval": interval} if interval else {}),
    }


def is_argument(name: str) -> bool:
    """Whether a server of this release can be given it."""
    kinds = engine_module(_ARGUMENTS).ServerArgs.__mro__
    return any(name in vars(kind).get("__annotations__", {}) for kind in kinds)


def _arguments(values: dict[str, Any]) -> Any:
    kind = engine_module(_ARGUMENTS).ServerArgs
    if hasattr(kind, "resolve_once"):  # then construction looks at nothing outside
        sizes = values.pop("cuda_graph_config")
        args = kind(**values)
        args.cuda_graph_config = sizes  # what resolving would have made of the sizes given
        args._resolution_finished = True
        return args
    args = object.__new__(kind)
    for entry in dataclasses.fields(kind):
        if entry.default_factory is not dataclasses.MISSING:
            setattr(args, entry.name, entry.default_factory())
        elif entry.default is not dataclasses.MISSING:
            setattr(args, entry.name, entry.default)
    for name, value in values.items():
        setattr(args, name, value)
    return args
