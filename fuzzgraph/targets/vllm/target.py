"""What every target on a released vLLM is, and loads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.vllm.attention_model import register
from fuzzgraph.targets.vllm.release import VLLM
from fuzzgraph.targets.vllm.runner_session import RUNNER, RunnerSession
from fuzzgraph.targets.vllm.stubs.compiled_operators import answer_for_compiled_operators
from fuzzgraph.targets.vllm.stubs.flash_attention import put_flash_attention
from fuzzgraph.targets.vllm.stubs.platform import become_cuda

_SELECTOR = "vllm.v1.attention.selector"
_LAYERS = "vllm.model_executor.layers.attention"
STOOD_IN_FOR = (
    "the device's graph (the graph engine captures)",
    "the checks by which the platform chooses a backend (the target names it)",
    "the scheduler (the case says what it hands over)",
)


class VllmTarget(ReleasedTarget):
    """The V1 runner of the vLLM release that this process holds, on one backend."""

    package = "vllm"
    module: str
    """Of the backend."""
    backend: str
    """Its class."""
    outputs_judged: Mapping[Mode, str] = MappingProxyType({"decode": ""})
    also_stood_in_for: tuple[str, ...] = ()
    """What is in this target, beyond `STOOD_IN_FOR`."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def stood_in_for(self) -> tuple[str, ...]:
        return (*STOOD_IN_FOR, *self.also_stood_in_for)

    def refused(self, config: EngineConfig) -> str | None:
        if config.v_head_dim != config.head_dim:
            return "the engine's cache has one head size for keys and values"
        return None

    def load(self) -> None:
        with cuda_on_cpu():
            become_cuda()
            answer_for_compiled_operators()
            VLLM.load(RUNNER, _SELECTOR, _LAYERS, self.module)
            register()

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return RunnerSession(config, graphs, f"{self.module}.{self.backend}")


_DRIVEN = Capabilities(
    modes=("decode", "idle"),
    page_sizes=(16, 32),
    dtypes=("float32", "float16"),  # Triton's interpreter takes bfloat16 for integers in tl.dot
    max_batch=4,
    max_context_len=64,
    max_q_heads=4,
    max_head_dim=16,
    capture_beyond_pool=False,
    preemption=True,
)


class TritonTarget(VllmTarget):
    """`--attention-backend TRITON_ATTN`, with its kernels."""

    about = "V1 runner, Triton attention, decode graphs"
    module = "vllm.v1.attention.backends.triton_attn"
    backend = "TritonAttentionBackend"
    capabilities = _DRIVEN


class FlashAttentionTarget(VllmTarget):
    """`--attention-backend FLASH_ATTN`, version 3, by models of its kernels."""

    about = "V1 runner, FlashAttention 3, decode graphs"
    module = "vllm.v1.attention.backends.flash_attn"
    backend = "FlashAttentionBackend"
    capabilities = _DRIVEN.replace(max_batch=8)
    also_stood_in_for = ("attention kernels and their planner, by models",)

    def load(self) -> None:
        super().load()
        put_flash_attention()
