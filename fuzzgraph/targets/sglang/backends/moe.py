"""`--moe-runner-backend triton`: a block of experts behind Triton attention.

The block is the engine's own of Qwen3-MoE, DeepSeek V3 or GPT-OSS, on the path that a server with
CUDA takes: `TopK`, the standard dispatcher, the fused kernels in Triton. With `--ep-size` each rank
has a part of the experts and gives its part of the sum; data-parallel ranks exchange their tokens
before and behind them. The engine's recorder counts the tokens of each expert, as it does for EPLB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.data_ranks import rank_sizes
from fuzzgraph.experts.columns import EXPERT_WIDTH
from fuzzgraph.experts.outputs import EXPERTS, OF_RANKS
from fuzzgraph.experts.routing import named_experts
from fuzzgraph.experts.weights import UNQUANTISED
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.attention_model import outputs_in
from fuzzgraph.targets.sglang.backends.triton import (
    OF_ONE_RANK,
    TritonSession,
    TritonTarget,
    triton_backend,
)
from fuzzgraph.targets.sglang.decode_session import DATA_RANKS
from fuzzgraph.targets.sglang.excuses import decode, experts
from fuzzgraph.targets.sglang.expert_fields import (
    IDS,
    Ids,
    counts_field,
    id_fields,
    id_names,
    masks_padded_tokens,
)
from fuzzgraph.targets.sglang.expert_recorder import kept_counts, open_recorder, use_recorder
from fuzzgraph.targets.sglang.experts_beside_ranks import (
    around_modules,
    beside_ranks,
    exchange_arguments,
    lacks_exchange,
)
from fuzzgraph.targets.sglang.experts_model import (
    BLOCKS,
    ExpertsModel,
    Family,
    described_experts,
    family_of,
)
from fuzzgraph.targets.sglang.release import (
    SGLANG,
    demand_release,
    engine_module,
    is_before,
)
from fuzzgraph.targets.sglang.stubs.custom_all_reduce import with_custom_all_reduce
from fuzzgraph.targets.sglang.stubs.expert_places import (
    PLACES,
    keep_places,
    place_arguments,
    places_as_loaded,
)
from fuzzgraph.targets.sglang.stubs.fused_experts import (
    MODULES,
    SETTINGS,
    run_experts_as_on_cuda,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.quantised_experts import (
    QUANTISED_MODULES,
    has_quantised_experts,
    quantise_as_on_cuda,
)
from fuzzgraph.world import Batch

_RANKS_SINCE = (0, 5, 12)
"""The oldest release on which experts beside data-parallel ranks were driven."""


class MoeSession(TritonSession):
    """One block of experts, one recorder and one decode runner with its captured graphs."""

    model_class = ExpertsModel
    shown_ids: Ids = IDS
    """What is shown of each token's experts: field and truth, by place."""

    def _server_arguments(self, config: EngineConfig) -> Mapping[str, Any]:
        fused = config.shared_experts == "fused"
        return {
            "tp_size": config.ep_size,
            "ep_size": config.ep_size,
            "moe_runner_backend": "triton",
            "disable_shared_experts_fusion": not fused,
            # Otherwise models of 256 experts on one rank alone have it.
            "enforce_shared_experts_fusion": fused,
            "expert_distribution_recorder_mode": "stat",
            "expert_distribution_recorder_buffer_size": 1,
            **place_arguments(config),
            **exchange_arguments(config),
        }

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        with cuda_on_cpu(), _block_on_cuda(self._config), beside_ranks(self._config):
            yield

    @property
    def computes_for_others(self) -> bool:  # type: ignore[override]
        return self._config.dp_size > 1

    def _open_backend(self, runner: ModelRunner) -> Any:
        model = runner.model
        assert isinstance(model, ExpertsModel)
        call_with_known(
            engine_module(SETTINGS).initialize_moe_config, server_args=runner.server_args
        )
        self.recorder = open_recorder(self._config, runner)
        copied = self._config.expert_copies > 0
        described = described_experts(self._config) if copied else None
        self.places = places_as_loaded(self._config, described) if copied else None
        self._use()
        block = model.open_block(runner.configuration.everyone)
        _take_cuda_path(block, quantised=self._config.expert_quantisation != UNQUANTISED)
        self._passes = 0
        return triton_backend(runner)

    def _use(self) -> None:
        super()._use()
        if self.places is not None:
            keep_places(self.places)
        use_recorder(self.recorder)

    @property
    def roots(self) -> Mapping[str, object]:
        return {
            **super().roots,
            "expert_distribution_recorder": self.recorder,
            "expert_location_metadata": self.places,
        }

    def _more_fields(self, config: EngineConfig) -> tuple[Field, ...]:
        masked = self._masks_padded_tokens(config)
        ids = id_fields(config, self.shown_ids, masked=masked)
        if config.dp_size > 1:  # the recorder counts padded tokens of other ranks as well
            return ids
        return (*ids, counts_field(masked=masked))

    def _masks_padded_tokens(self, config: EngineConfig) -> bool:
        """Whether the router gives padded tokens no expert."""
        return masks_padded_tokens(config)

    @property
    def _id_columns(self) -> int:
        return len(self.shown_ids) * named_experts(self._config)

    @contextlib.contextmanager
    def _recorded_pass(self) -> Iterator[None]:
        """As the engine's model runner surrounds each forward."""
        self._passes += 1
        with self.recorder.with_forward_pass(self._passes, self._last_batch):
            yield

    def replay(self, batch: Batch) -> None:
        if self.ran_eagerly:
            return
        with self.engine_runs(batch), self._recorded_pass():
            super().replay(batch)

    def _forward_eagerly(self) -> None:
        with self._recorded_pass():
            super()._forward_eagerly()

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super()._used(lens)
        if self._outputs is None:
            return found
        shown = self._outputs.next_token_logits[:, -self._id_columns :]
        names = id_names(self._config, self.shown_ids)
        found |= {name: ids.long() for name, ids in zip(names, shown.unbind(1), strict=True)}
        if self._config.dp_size == 1:
            found["expert_counts"] = kept_counts(self.recorder)
        return found

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        own = () if mode == "idle" else (EXPERTS,)
        of_ranks = (OF_RANKS,) if self._config.dp_size > 1 else ()
        return (*super().promised_outputs(mode), *own, *of_ranks)

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        found = super().shown_outputs()
        if self._config.dp_size > 1:
            assert isinstance(self._attention, ExpertsModel) and self._past is not None
            sizes = rank_sizes(self._past[0], self._config)
            found[OF_RANKS] = self._attention.given_of_ranks(sizes)
        return found

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        shown = outputs.next_token_logits[:, : -self._id_columns]
        attended = type(outputs)(next_token_logits=shown[:, :-EXPERT_WIDTH].contiguous())
        found = outputs_in(attended, self._config)
        return {**found, EXPERTS: shown[:, -EXPERT_WIDTH:].clone()}


def _take_cuda_path(block: Any, *, quantised: bool) -> None:
    for layer in (block.topk,) if quantised else (block.topk, block.experts.quant_method):
        layer._forward_method = layer.forward_cuda


def _block_on_cuda(config: EngineConfig) -> contextlib.AbstractContextManager[None]:
    """As on a server with CUDA, where experts scale their sum by themselves and DeepSeek's block
    does not, as it does elsewhere (sglang deepseek_v2.py forward_normal)."""
    if family_of(config) != "deepseek":
        return contextlib.nullcontext()
    return replaced_names([engine_module(BLOCKS["deepseek"][0])], {"_is_cuda": True})


_MODEL_SIZES: Mapping[str, Any] = MappingProxyType({"dtypes": ("float16",), "attentions": ("mha",)})
"""The fused kernels store float16 whatever float32 they are given (fused_moe.py compute_type)."""


_QUANTISATIONS = (
    UNQUANTISED,
    "fp8_blocks",
    "fp8_channels",
    "fp8_tensors",
    "fp8_dynamic",
    "int8_channels",
)


class MoeTarget(TritonTarget):
    """A block of experts on the sglang release that this process holds."""

    excuses = (*decode.EXCUSES, *experts.EXCUSES)
    also_stood_in_for = (
        "the number of cores",
        "compiled kernels that route and quantise (models)",
        "what other ranks of experts have",
        "the device's name",
    )

    def __init__(
        self,
        name: str,
        mode: Literal["decode", "target_verify"],
        family: Family = "qwen3",
    ) -> None:
        super().__init__(name, mode)
        self._family = family
        model = {"qwen3": "Qwen3's", "deepseek": "DeepSeek V3's", "gpt-oss": "GPT-OSS's"}[family]
        self.about = f"{model} experts by fused Triton kernels, {mode} graphs"
        self.capabilities = self.capabilities.replace(
            modes=(mode, "idle"),
            experts=True,
            max_experts_per_token=3,
            max_ep_size=8,
            expert_exchanges=("scatterv", "gatherv", "scatter", "reduce"),
            expert_scorings=("sigmoid" if family == "deepseek" else "softmax",),
            expert_activations=("clamped_swiglu" if family == "gpt-oss" else "silu",),
            max_expert_groups=4 if family == "deepseek" else 1,
            expert_copies=family == "deepseek",
            shared_experts=("none", "apart", "fused") if family == "deepseek" else ("none",),
            expert_quantisations=_QUANTISATIONS if family == "qwen3" else (UNQUANTISED,),
            **_MODEL_SIZES,
            **{**OF_ONE_RANK, **DATA_RANKS},
        )

    def refused(self, config: EngineConfig) -> str | None:
        if not config.num_experts:
            return "the model has a layer of experts: num_experts must be 1 or more"
        return super().refused(config)

    def unserved(self, config: EngineConfig) -> str | None:
        if config.expert_quantisation != UNQUANTISED and not has_quantised_experts():
            return f"{config.expert_quantisation} is quantised by kernels of later releases"
        if lacks_exchange(config.expert_exchange):
            return f"expert_exchange={config.expert_exchange!r} is an option of later releases"
        return super().unserved(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> MoeSession:
        return MoeSession(config, graphs)

    def load(self) -> None:
        if self._family == "deepseek":
            lack = "does not tell this block of padded tokens, or has no kernel in Triton for it,"
            demand_release((0, 5, 21), lack, self.name)
        if is_before(_RANKS_SINCE):
            self.capabilities = self.capabilities.replace(max_dp_size=1)
        super().load()
        self.capabilities = with_custom_all_reduce(self.capabilities)
        with cuda_on_cpu():
            quantised = has_quantised_experts()
            more = QUANTISED_MODULES if quantised else ()
            SGLANG.load(BLOCKS[self._family][0], *MODULES, PLACES, *around_modules(), *more)
            if not torch.cuda.is_available():
                run_experts_as_on_cuda()
                if quantised:
                    quantise_as_on_cuda()
