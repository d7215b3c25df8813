"""What every target on a released vLLM is, and loads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig, Mode
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.fp8_weights import FLASH_ATTENTION_3, TRITON
from fuzzgraph.handover import Excuse
from fuzzgraph.kernel_models import flash_mla
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.vllm.attention_model import OneLayer, register
from fuzzgraph.targets.vllm.release import VLLM, breakable_graphs, engine_module, release
from fuzzgraph.targets.vllm.runner_session import RUNNER, RunnerSession
from fuzzgraph.targets.vllm.stubs.compiled_operators import answer_for_compiled_operators
from fuzzgraph.targets.vllm.stubs.flash_attention import put_flash_attention
from fuzzgraph.targets.vllm.stubs.flash_mla import put_flash_mla
from fuzzgraph.targets.vllm.stubs.flashinfer import allow_flashinfer, put_flashinfer
from fuzzgraph.targets.vllm.stubs.latent_attention import put_latent_attention
from fuzzgraph.targets.vllm.stubs.platform import BLACKWELL, HOPPER, become_cuda
from fuzzgraph.targets.vllm.stubs.process import WORKER

_SELECTOR = "vllm.v1.attention.selector"
_LAYERS = "vllm.model_executor.layers.attention"
_GRAPH_KEYS = "vllm.forward_context"
_ASKS_AT_IMPORT = "vllm.v1.attention.backends.flash_attn"
"""Decides by the device which graphs it has, so that no session's device may be there yet."""
STOOD_IN_FOR = (
    "the device's graph (the graph engine captures)",
    "the checks by which the platform chooses a backend (the target names it)",
    "the scheduler (the case says what it hands over)",
)


class VllmTarget(ReleasedTarget):
    """The V1 runner of the vLLM release that this process holds, on one backend.

    Args:
        name: what findings call it.
        mode: what it captures graphs for: decodes, verifies of drafts, or batches of any kind.
    """

    package = "vllm"
    module: str
    """Of the backend."""
    backend: str
    """Its class."""
    model: type[OneLayer] = OneLayer
    runner = RUNNER
    session: type[RunnerSession] = RunnerSession
    generation = "V1"
    most_ranks = 8
    """Data-parallel ranks, where decodes are driven beside others."""
    kernels: str
    """What `about` calls the backend."""
    max_batch = 4
    more: Mapping[str, Any] = MappingProxyType({})
    """What else it has of the dimensions: a field of `Capabilities`, its value."""
    attention: Mapping[str, Any] = MappingProxyType({})
    """Of `--attention-config`."""
    device = HOPPER
    """Its compute capability."""
    keys_of_a_part = 0
    """Its kernel sums in parts, one for so many keys of the longest row; 0 where it does not."""
    also_stood_in_for: tuple[str, ...] = ()
    """What is in this target, beyond `STOOD_IN_FOR`."""

    def __init__(self, name: str, mode: Mode = "decode") -> None:
        self.name = name
        self.about = f"{self.generation} runner, {self.kernels}, {_ABOUT[mode]}"
        ranks = self.most_ranks if mode == "decode" else 1
        self.capabilities = _driven(mode).replace(
            max_batch=self.max_batch, max_dp_size=ranks, **self.more
        )

    @property
    def outputs_judged(self) -> Mapping[Mode, str]:  # type: ignore[override]
        return {self.mode: ""}

    @property
    def stood_in_for(self) -> tuple[str, ...]:
        return (*STOOD_IN_FOR, *self.also_stood_in_for)

    def refused(self, config: EngineConfig) -> str | None:
        if config.attention == "mla" and config.v_head_dim >= config.head_dim:
            return f"v_head_dim={config.v_head_dim} leaves a latent row without a rotary part"
        if config.attention == "mha" and config.v_head_dim != config.head_dim:
            return "the engine's cache has one head size for keys and values"
        return None

    def load(self) -> None:
        with cuda_on_cpu():
            become_cuda()
            answer_for_compiled_operators()
            with breakable_graphs():
                VLLM.load(self.runner, WORKER, _SELECTOR, _LAYERS, _ASKS_AT_IMPORT, self.module)
            self._demand_full_graphs()
            register(self.model)

    def _demand_full_graphs(self) -> None:
        """
        Raises:
            AdapterUnavailable: the release captures this backend piecewise at most, or mixed
                batches without a number of requests.
        """
        builder = getattr(engine_module(self.module), self.backend).get_builder_cls()
        by_config = "get_cudagraph_support" in vars(builder)
        if not by_config and builder._cudagraph_support.name == "NEVER":
            raise AdapterUnavailable(
                f"vLLM {release()} has no full decode graphs on {self.backend}, which target "
                f"{self.name!r} drives. Name a release that has them: "
                "fuzzgraph targets lists them."
            )
        descriptor = engine_module(_GRAPH_KEYS).BatchDescriptor
        if self.mode == "prefill" and hasattr(descriptor, "relax_for_mixed_batch_cudagraphs"):
            raise AdapterUnavailable(
                f"vLLM {release()} pads no rows of mixed batches, only tokens, and target "
                f"{self.name!r} shows padded rows. Name a release from 0.17.0 on, for example "
                "--release 0.33.0."
            )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        path = f"{self.module}.{self.backend}"
        opened = self.session(config, graphs, path, self.attention, self.device)
        opened.keys_of_a_part = self.keys_of_a_part
        return opened


_ABOUT: Mapping[Mode, str] = {
    "decode": "decode graphs",
    "target_verify": "verify graphs",
    "prefill": "mixed batches",
    "draft": "drafts",
}
_DRIVEN = Capabilities(
    page_sizes=(16, 32),
    dtypes=("float32", "float16"),  # Triton's interpreter cuts casts to bfloat16 off
    max_context_len=LONGEST_CONTEXT,
    max_q_heads=4,
    max_head_dim=16,
    capture_beyond_pool=False,
    preemption=True,
    swa_window=True,
    row_mixings=("none", "fp8_scale", "nan"),
)

# Of the four columns that most cases draw three are rotary, for a width that equals the other one
# hides it where the engine takes one for the other. No layer of these rotates them.
_LATENT = {"attentions": ("mla",), "min_rope_dim": 3, "swa_window": False}
_STORED = "the kernel that stores latent rows, by a model"


_FP8_KV = {
    "dtypes": ("float32", "float16", "bfloat16"),
    "kv_dtypes": ("auto", "float8_e4m3fn"),
    "fp8_kv_beside": "bfloat16",
}
"""Of kernels that take queries in FP8 where keys are (`--kv-cache-dtype fp8_e4m3`), and give
bfloat16."""


def _driven(mode: Mode) -> Capabilities:
    if mode == "target_verify":
        return _DRIVEN.replace(modes=(mode, "idle"), max_draft_tokens=6, ragged_verify=True)
    # Pages that leave a window in the middle of a prompt have not been tried.
    return _DRIVEN.replace(modes=(mode, "idle"), swa_window=mode == "decode")


class TritonTarget(VllmTarget):
    """`--attention-backend TRITON_ATTN`, with its kernels."""

    kernels = "Triton attention"
    more: Mapping[str, Any] = MappingProxyType({"kv_dtypes": _FP8_KV["kv_dtypes"]})
    fp8_weights = TRITON
    module = "vllm.v1.attention.backends.triton_attn"
    backend = "TritonAttentionBackend"


class FlashAttentionTarget(VllmTarget):
    """`--attention-backend FLASH_ATTN`, version 3, by models of its kernels."""

    kernels = "FlashAttention 3"
    module = "vllm.v1.attention.backends.flash_attn"
    backend = "FlashAttentionBackend"
    max_batch = 8
    more = MappingProxyType(_FP8_KV)
    fp8_weights = FLASH_ATTENTION_3  # vLLM's build has the same kernel
    also_stood_in_for: tuple[str, ...] = ("attention kernels and their planner, by models",)

    def load(self) -> None:
        super().load()
        put_flash_attention(self.module)


class TritonMlaTarget(VllmTarget):
    """`--attention-backend TRITON_MLA`, with its kernels."""

    kernels = "Triton attention over latent rows"
    module = "vllm.v1.attention.backends.mla.triton_mla"
    backend = "TritonMLABackend"
    attention = MappingProxyType({"backend": "TRITON_MLA"})
    more = MappingProxyType(_LATENT)
    keys_of_a_part = 512  # triton_mla.py _MIN_WORK_PER_SPLIT
    also_stood_in_for = (_STORED,)

    def load(self) -> None:
        super().load()
        put_latent_attention()


class FlashInferTarget(VllmTarget):
    """`--attention-backend FLASHINFER` on a Hopper GPU, by models of its wrappers.

    From 0.25 on such a server decodes by XQA where it can download that; this one may not.
    """

    kernels = "FlashInfer's wrappers"
    module = "vllm.v1.attention.backends.flashinfer"
    backend = "FlashInferBackend"
    attention = MappingProxyType({"backend": "FLASHINFER", "use_trtllm_attention": False})
    max_batch = 8
    more = MappingProxyType({**_FP8_KV, "page_sizes": (16, 32, 64), "swa_window": False})
    also_stood_in_for = (
        "FlashInfer's wrappers, and the kernels that store KV and quantise queries, by models",
    )
    excuses = (
        Excuse(
            "*.paged_kv_indices",
            "live",
            "vLLM flashinfer.py __init__: a graph's list has room for all pages of all requests",
            "what lies behind the last offset belongs to no row; the list is judged as a field",
        ),
    )

    def load(self) -> None:
        allow_flashinfer()
        super().load()
        put_flashinfer()


class TrtllmGenTarget(FlashInferTarget):
    """`--attention-backend FLASHINFER` on a Blackwell GPU: TensorRT-LLM's kernels, by a model."""

    kernels = "FlashInfer's kernels of TensorRT-LLM"
    attention = MappingProxyType({"backend": "FLASHINFER", "use_trtllm_attention": True})
    device = BLACKWELL
    also_stood_in_for = ("TensorRT-LLM's kernel and the one that stores KV, by models",)


class FlashAttentionMlaTarget(VllmTarget):
    """`--attention-backend FLASH_ATTN_MLA`, by models of its kernels."""

    kernels = "FlashAttention 3 over latent rows"
    module = "vllm.v1.attention.backends.mla.flashattn_mla"
    backend = "FlashAttnMLABackend"
    attention = MappingProxyType({"backend": "FLASH_ATTN_MLA"})
    max_batch = 8
    more = MappingProxyType(_LATENT)
    also_stood_in_for = ("attention kernels and their planner, by models", _STORED)

    def load(self) -> None:
        super().load()
        put_latent_attention()
        put_flash_attention(self.module)


_TILES = "FlashMLA get_mla_metadata: parts of the work are shared out over all rows of a batch"


class FlashMlaTarget(VllmTarget):
    """`--attention-backend FLASHMLA`, its own Python and models of its kernels."""

    kernels = "FlashMLA"
    module = "vllm.v1.attention.backends.mla.flashmla"
    backend = "FlashMLABackend"
    attention = MappingProxyType({"backend": "FLASHMLA"})
    max_batch = 8
    more = MappingProxyType({**_LATENT, "page_sizes": (flash_mla.FLASH_MLA_PAGE,)})
    also_stood_in_for = ("FlashMLA's kernels, by models", _STORED)
    excuses = (Excuse("*.num_splits", "live", _TILES, "padded rows take part in the plan"),)

    def load(self) -> None:
        super().load()
        put_latent_attention()
        put_flash_mla()
