"""`--attention-backend dsv4`: DeepSeek V4's attention backend, whose metadata is upgraded late.

The backend prepares raw metadata before a replay and makes full metadata of it inside the graph.
Real are its constructor, both preparations, the upgrade and its Triton kernels, behind the
release's decode runner. Stood in for are the planner of compressed attention, which is C++, and
the KV pool, whose constructor allocates for a whole model: of it the metadata needs the mapping of
slots to those of the sliding window, here the identity. The model looks at the metadata as its
kernels would and computes nothing.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.offline.used import below_lengths
from fuzzgraph.targets.sglang.decode_session import DecodeSession
from fuzzgraph.targets.sglang.fields import input_fields, input_names
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, no_forward
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.world import FIRST_PAGE, Batch

_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend"
_POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
_SETTINGS = {
    "SGLANG_PREP_IN_CUDA_GRAPH": "1",  # since 0.5.14 nothing else is possible
    # Compiled kernels of the indexer give way to those in torch.
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1",
    "SGLANG_OPT_USE_JIT_INDEXER_METADATA": "0",
    "SGLANG_OPT_USE_TOPK_V2": "0",
}
"""What the engine reads from the environment."""
_NEEDED = "DSV4Metadata"
_HEAD_DIM = 512
_TABLE = (
    "sglang deepseek_v4_backend.py make_core_attn_metadata: pages of each row below its own "
    "length; a padded row lies in the pool's padding row"
)


class Dsv4Target(SglangTarget):
    """The DSV4 backend of the sglang release that this process holds.

    Args:
        upgrades: whether raw metadata is upgraded; False makes the mutant of PR 26742.
    """

    about = "DeepSeek V4's metadata and its late upgrade"
    also_stood_in_for = (
        "attention kernels",
        "the planner of compressed attention",
        "the KV pool",
    )
    capabilities = Capabilities(
        page_sizes=(256,),
        max_batch=4,
        max_context_len=512,
        capture_beyond_pool=False,
    )

    def __init__(self, name: str, *, upgrades: bool = True) -> None:
        self.name = name
        self._upgrades = upgrades

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Dsv4Session:
        return Dsv4Session(config, graphs, upgrades=self._upgrades)

    def modules(self) -> tuple[str, ...]:
        return _BACKEND, _POOL

    def load(self) -> None:
        engine_module("sglang.srt.environ")  # looks at what the shell has set
        os.environ.update(_SETTINGS)  # for the life of the worker
        super().load()


def without_upgrade() -> Dsv4Target:
    """The mutant of PR 26742: the upgrade is lost, as its review warned."""
    return Dsv4Target("sglang-dsv4", upgrades=False)


class _Plan:
    """In place of the plan of compressed attention, whose planner is C++."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def copy_(self, other: _Plan) -> None: ...


def _kv_pool(config: EngineConfig, device: str) -> Any:
    base: Any = engine_module(_POOL).DeepSeekV4TokenToKVPool

    class Pool(base):  # type: ignore[misc]
        present_ratios = (4, 128)
        request_window = None  # an option of 0.5.22 on, off by default

        def __init__(self) -> None:
            slots = (config.kv_pool_pages + FIRST_PAGE) * config.page_size
            self.swa_page_size = 128
            self.page_size = config.page_size
            # The indexer's keys of one compression; only their pages' size is asked for.
            self.index_pools = {4: Stub(page_size=config.page_size // 4)}
            self.full_to_swa_index_mapping = torch.arange(slots, device=device)

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"the KV pool's stand-in has no {name!r}, which this release reads"
            )

        def translate_loc_from_full_to_swa(self, slots: torch.Tensor) -> torch.Tensor:
            return slots

        def get_ring_size(self, *_: Any, **__: Any) -> int:
            return 8

    return Pool()


class Dsv4Session(DecodeSession):
    """One backend and one decode runner with its captured graphs."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, *, upgrades: bool) -> None:
        self._upgrades = upgrades
        self._read: dict[int | str, Any] = {}
        self.inputs = input_names(config)
        self.fields = (
            *input_fields(config, 1),
            fields.page_table(source=_TABLE),
            fields.value("seq_lens_casual", repeats="seq_lens", source=_TABLE),
        )
        model = Stub(forward=self._forward, shared_experts_config=None)
        super().__init__(config, graphs, backend="dsv4", model=model)

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        return cuda_on_cpu()

    def _forward(self, input_ids: Any, positions: Any, forward_batch: Any, **_: Any) -> Any:
        """Looks at the metadata as a kernel would; up to 0.5.12 attention upgrades it first."""
        upgrade = getattr(self.backend, "_maybe_upgrade_forward_metadata", None)
        if upgrade is not None and self._upgrades:
            upgrade()
        size = "eager" if self.ran_eagerly else forward_batch.batch_size
        self._read[size] = self.backend.forward_metadata
        return no_forward()

    def _open_backend(self, runner: ModelRunner) -> Any:
        module = engine_module(_BACKEND)
        module.create_paged_compressor_data = _Plan
        runner.token_to_kv_pool = _kv_pool(self._config, runner.device)
        runner.model_config.head_dim = runner.model_config.v_head_dim = _HEAD_DIM
        backend = module.DeepseekV4AttnBackend(runner)
        if not self._upgrades:
            backend.init_forward_metadata_in_graph = lambda forward_batch: None
        return backend

    def _prepare_eagerly(self) -> None:
        super()._prepare_eagerly()
        if self._last_batch.batch_size:
            self._forward(None, None, self._last_batch)

    def _seen(self) -> Any:
        """The metadata that the forward of this step had before it."""
        return self._read.get("eager" if self.ran_eagerly else self.runner.padded_bs)

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        core = getattr(self._seen(), "core_attn_metadata", None)
        if core is None:  # raw metadata, which the types tell of
            return {}
        table = below_lengths(core.page_table, lens, self._config.page_size)
        casual = core.seq_lens_casual[: len(lens)].clone()
        return {"page_table": table, "seq_lens_casual": casual}

    def types(self) -> dict[str, str]:
        if self._seen() is None:
            return {}
        kind = type(self._seen()).__name__
        return {"forward_metadata": kind, "forward_metadata.needed": _NEEDED}
