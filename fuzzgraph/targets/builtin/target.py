"""The built-in engine as a target: the embedded default, and the home of planted faults."""

from __future__ import annotations

from typing import Literal

from fuzzgraph.capabilities import WIDEST, unsupported_setting
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.session import BuiltinSession
from fuzzgraph.targets.builtin.staging import StagedRegistry, staged_by

_EVERYTHING = WIDEST.replace(
    kv_dtypes=("auto", "float8_e4m3fn"),
    page_sizes=(1, 16, 32, 64, 128, 3, 5, 256, 480),
    max_context_len=LONGEST_CONTEXT,
    max_spec_topk=8,
    # It has no indexer, and keeps every key as it is: its attention takes them all.
    kv_compressions=("none",),
    pooled_blocks=(0,),
    layer_types=False,
    sparse_kernels=("fa3",),
    topk_kernels=("planned",),
    index_topks=(0,),
    index_groups=(1,),
    candidate_blocks=(0,),
    index_layers=("own",),
    prefill_runners=("piecewise", "breakable"),
    max_prefill_slots=1,
    images=False,
    ragged_verify=False,
    recurrent_verify=False,
    attention_chunks=False,
    virtual_pages=False,
    state_tracking=False,
    prefix_branches=False,
    few_states=False,
    state_rings=False,
    safe_gates=False,
    even_ranks=False,
    prefilling_ranks=False,
    state_flushes=False,
    drafted_prompts=False,
    drafted_blocks=("none",),
    samplings=("greedy",),
    backends_beside=("none",),
    trtllm_kernels=("trtllm_gen",),
    logit_caps=(0,),
    platforms=("cuda",),
    drafted_windows=False,
    draft_windows=False,
    draft_reaches=("drafts",),
    draft_branches=("apart",),
    draft_adapters=False,
    loras=False,
    lora_evictions=("lru",),
    pinned_loras=False,
    adapted_embeddings=False,
    experts=False,
    max_experts_per_token=1,
    expert_scorings=("softmax",),
    expert_activations=("silu",),
    max_ep_size=1,
    expert_exchanges=("scatterv",),
)


class BuiltinTarget:
    """Implements `ports.Target`.

    Args:
        components: the classes that the engine is made of.
        name: what findings call it.
        kernels: what cases are drawn for; either kind is served when a case asks for it. Triton's
            interpreter takes some hundred milliseconds for what torch does in one.
        inputs: memory of the host from which the healthy engine copies its inputs; where it is
            pinned, nothing waits for these copies.
    """

    about: str
    """What is driven, in one line."""
    engine_packages = ("fuzzgraph.targets.builtin",)
    """Where the engine's code lies."""

    def __init__(
        self,
        components: Components | None = None,
        name: str = "builtin",
        kernels: Literal["torch", "triton"] = "torch",
        inputs: Literal["pageable", "pinned"] = "pageable",
    ) -> None:
        self.name = name
        self.about = f"the built-in engine with kernels in {kernels.capitalize()}"
        if inputs == "pinned":
            self.about += ", pinned inputs"
        healthy = staged_by(StagedRegistry) if inputs == "pinned" else Components()
        self.components = healthy if components is None else components
        self.capabilities = _EVERYTHING.replace(kernels=(kernels,))
        self.outputs_judged = {mode: "" for mode in _EVERYTHING.modes if mode != "idle"}

    def unsupported(self, config: EngineConfig) -> str | None:
        """A second layer in other modes than decode; kernels of either kind are served."""
        if config.swa_window and config.modes != ("decode",):
            return f"swa_window={config.swa_window} is driven in modes=('decode',) alone"
        return unsupported_setting(_EVERYTHING, config)

    def open(self, config: EngineConfig, graphs: GraphEngine) -> BuiltinSession:
        return BuiltinSession(config, graphs, self.components)
