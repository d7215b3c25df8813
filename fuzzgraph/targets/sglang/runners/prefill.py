"""Targets `sglang-piecewise-prefill` and `sglang-breakable-prefill`: graphs on the token axis.

The release's own runner pads the tokens of a prefill to a captured count and replays what lies
between the breaks; at each break its Triton attention runs anew, on a CPU in Triton's interpreter.
Outputs, buffers and metadata are judged. The model is a layer of the engine's `RadixAttention`, and
a second one behind a sliding window, on the hybrid pool or on that of virtual pages.
"""

from __future__ import annotations

from typing import Literal

from fuzzgraph import fp8_weights
from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.attention_model import ROW_MIXINGS
from fuzzgraph.targets.sglang.backends.triton import TRITON_BACKEND
from fuzzgraph.targets.sglang.decode_session import DATA_RANKS
from fuzzgraph.targets.sglang.excuses.prefill import PREFILL_EXCUSES
from fuzzgraph.targets.sglang.release import release
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import (
    BREAKABLE,
    PIECEWISE,
    prefill_module,
)
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.targets.sglang.unified_pool import refused_virtual_pages


class PrefillTarget(SglangTarget):
    """One kind of prefill graphs of the sglang release that this process holds."""

    any_page_size = True
    excuses = PREFILL_EXCUSES
    attends_alone = True
    """Whether its layers are Triton attention and nothing beside: then they may be behind a sliding
    window, and have KV in FP8."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self._kind = PIECEWISE if kind == PIECEWISE.name else BREAKABLE
        graphs: Literal["piecewise", "breakable"]
        graphs = "piecewise" if self._kind is PIECEWISE else "breakable"
        self.about = f"{graphs} prefill graphs, Triton attention"
        self.outputs_judged = {"prefill": ""}
        device = "torch's compiler" if self._kind is PIECEWISE else "the device's stream"
        self.also_stood_in_for = (device,)
        self.capabilities = Capabilities(
            modes=("prefill",),
            page_sizes=(1, 4, 16),
            dtypes=("float32", "float16"),  # the interpreter's tl.dot takes bfloat16 for integers
            prefill_runners=(graphs,),
            max_batch=4,
            max_context_len=LONGEST_CONTEXT,
            max_q_heads=4,
            max_head_dim=16,
            max_tp_size=4,
            row_mixings=ROW_MIXINGS,
            images=True,
        )
        if self.attends_alone:
            self.fp8_weights = fp8_weights.TRITON
            self.capabilities = self.capabilities.replace(
                kv_dtypes=("auto", "float8_e4m3fn"),
                swa_window=True,
                # Releases with piecewise graphs get physical pages times a factor.
                virtual_pages=self._kind is BREAKABLE,
                layer_types=True,
                prefix_by_group=False,
            )
        if self._kind is BREAKABLE:
            self.capabilities = self.capabilities.replace(modes=("prefill", "idle"), **DATA_RANKS)

    def refused(self, config: EngineConfig) -> str | None:
        if config.capture_tokens[-1] % config.attn_tp_size:
            return f"{config.attn_tp_size} ranks cannot share {config.capture_tokens[-1]} tokens"
        most = config.req_pool_size * config.max_context_len
        if config.capture_tokens[-1] > most:
            # From 0.5.22 on the engine captures as many requests as the tokens need.
            return f"no batch has {config.capture_tokens[-1]} tokens: the pool ends at {most}"
        return refused_virtual_pages(config, self.capabilities)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> PrefillSession:
        return PrefillSession(config, graphs, self._kind)

    def modules(self) -> tuple[str, ...]:
        module = prefill_module(self._kind)
        if module is None:
            raise AdapterUnavailable(
                f"sglang {release()} has no {self._kind.runner} and no {self._kind.backend} for "
                f"prefills, which target {self.name!r} drives. Name a release that has one: "
                "fuzzgraph targets lists them."
            )
        return TRITON_BACKEND, module, "sglang.srt.layers.radix_attention"
