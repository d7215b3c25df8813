"""`--moe-runner-backend triton`: a block of experts behind Triton attention.

The block is the engine's own of Qwen3-MoE, DeepSeek V3 or GPT-OSS, on the path that a server with
CUDA takes: `TopK`, the standard dispatcher, the fused kernels in Triton. With `--ep-size` each rank
has a part of the experts and gives its part of the sum; data-parallel ranks exchange their tokens
before and behind them. The engine's recorder counts the tokens of
each expert, as it does for EPLB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.expert_columns import EXPERT_WIDTH
from fuzzgraph.expert_layer import (
    EXPERTS,
    OF_RANKS,
    UNQUANTISED,
    named_experts,
    places,
    rank_sizes,
)
from fuzzgraph.handover import Excuse
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import outputs_in
from fuzzgraph.targets.sglang.backends.triton import (
    OF_ONE_RANK,
    TritonSession,
    TritonTarget,
    triton_backend,
)
from fuzzgraph.targets.sglang.decode_session import DATA_RANKS
from fuzzgraph.targets.sglang.excuses.decode import EXCUSES
from fuzzgraph.targets.sglang.experts_beside_ranks import BOUNDARY, around_modules
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
    has_module,
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
    DISPATCHER,
    MODULES,
    RECORDER,
    SETTINGS,
    TOPK,
    run_experts_as_on_cuda,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.quantised_experts import (
    QUANTISED_MODULES,
    has_quantised_experts,
    quantise_as_on_cuda,
)
from fuzzgraph.targets.sglang.stubs.tp_groups import gathered_apart
from fuzzgraph.world import Batch

_RANKS_SINCE = (0, 5, 12)
"""The oldest release on which experts beside data-parallel ranks were driven."""
_DATA_RANKS = "sglang.srt.layers.dp_attention"
_CHOSEN = "sglang topk.py select_experts: the k largest, in falling order"
_MASKED = "sglang topk.py _mask_topk_ids_padded_region: -1 from num_token_non_padded on"
_COUNTED = "sglang expert_distribution.py _SelectExpertsSinglePassGatherer: ids of -1 do not count"
_UNMASKED = (
    "padded tokens count as well: nothing tells the block of their number (sglang qwen3_moe.py "
    "forward_normal up to 0.5.21; with one rank forward_batch_info.py enable_num_token_non_padded)"
)


_IDS = (("topk_ids", "chosen_experts"), ("local_topk_ids", "local_experts"))
"""What the router chose, and what the experts were handed: field and truth, by place."""


def _names(config: EngineConfig, truths: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Names of fields, and of what they repeat, for each expert of a token."""
    name, truth = truths
    named = range(named_experts(config))
    return [f"{name}.{place}" for place in named], [f"{truth}:{place}" for place in named]


class MoeSession(TritonSession):
    """One block of experts, one recorder and one decode runner with its captured graphs."""

    model_class = ExpertsModel
    shown_ids = _IDS
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
            **(_RETURNED_BY[config.expert_exchange] if config.dp_size > 1 else {}),
        }

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        with cuda_on_cpu(), _block_on_cuda(self._config), _beside_ranks(self._config):
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
        self.recorder = _recorder(self._config, runner)
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
        engine_module(RECORDER).set_global_expert_distribution_recorder(self.recorder)

    @property
    def roots(self) -> Mapping[str, object]:
        return {
            **super().roots,
            "expert_distribution_recorder": self.recorder,
            "expert_location_metadata": self.places,
        }

    def _more_fields(self, config: EngineConfig) -> tuple[Field, ...]:
        masked = self._masks_padded_tokens(config)
        ids = tuple(
            _ids_field(name, truth, masked and place < config.experts_per_token)
            for truths in self.shown_ids
            for place, (name, truth) in enumerate(zip(*_names(config, truths), strict=True))
        )
        if config.dp_size > 1:  # the recorder counts padded tokens of other ranks as well
            return ids
        if masked:
            counts = common.value("expert_counts", repeats="expert_counts", source=_COUNTED)
        else:
            counts = Field(
                "expert_counts", "scalar", "nothing", common.FREE, source=_COUNTED,
                unjudged=_UNMASKED, past=_UNMASKED,
            )  # fmt: skip
        return (*ids, counts)

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
        names = [name for truths in self.shown_ids for name in _names(self._config, truths)[0]]
        found |= {name: ids.long() for name, ids in zip(names, shown.unbind(1), strict=True)}
        if self._config.dp_size == 1:
            kept = self.recorder._accumulator._global_physical_count_of_buffered_step
            found["expert_counts"] = kept.get_all()[0, 0].long()  # of one pass, and its one layer
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


def _ids_field(name: str, truth: str, masked: bool) -> Field:
    """Numbers of experts of tokens, one place of each; what masks padded tokens passes over the
    place of a shared expert, which computes them for nothing."""
    padded = PaddingRule("fill", -1) if masked else common.FREE
    source = _MASKED if masked else _CHOSEN
    return Field(name, "tokens", "nothing", padded, source=source, repeats=truth)


def masks_padded_tokens(config: EngineConfig) -> bool:
    """Whether this release's block masks padded tokens, where experts lie on several ranks
    that have the same tokens: DeepSeek's hands the count on (0.5.21), and since 0.5.23 `TopK` looks
    it up by itself. Gathered tokens of several ranks are masked elsewhere, by the dispatcher."""
    if config.ep_size == 1 or config.dp_size > 1:
        return False
    by_itself = hasattr(engine_module(TOPK), "resolve_routing_inputs")
    return by_itself or config.expert_scoring == "sigmoid"


def _recorder(config: EngineConfig, runner: ModelRunner) -> Any:
    """The engine's own, recording, over experts that lie where their numbers say."""
    placed = Stub(
        num_layers=1,
        num_physical_experts=places(config),
        num_logical_experts=config.num_experts,
        num_local_physical_experts=places(config) // config.ep_size,
        ep_size=config.ep_size,
    )
    made = call_with_known(
        engine_module(RECORDER).ExpertDistributionRecorder.init_new,
        server_args=runner.server_args,
        expert_location_metadata=placed,
        rank=config.ep_rank,
    )
    made.start_record()
    return made


def _take_cuda_path(block: Any, *, quantised: bool) -> None:
    for layer in (block.topk,) if quantised else (block.topk, block.experts.quant_method):
        layer._forward_method = layer.forward_cuda


def _block_on_cuda(config: EngineConfig) -> contextlib.AbstractContextManager[None]:
    """As on a server with CUDA, where experts scale their sum by themselves and DeepSeek's block
    does not, as it does elsewhere (sglang deepseek_v2.py forward_normal)."""
    if family_of(config) != "deepseek":
        return contextlib.nullcontext()
    return replaced_names([engine_module(BLOCKS["deepseek"][0])], {"_is_cuda": True})


_RETURNED_BY: Mapping[str, Mapping[str, str]] = MappingProxyType({
    exchange: dict.fromkeys(("boundary_reduction", "speculative_boundary_reduction"), reduction)
    for exchange, reduction in (
        ("scatterv", "rs+rsv"), ("gatherv", "rs+rsv"), ("scatter", "rs"), ("reduce", "ar"),
    )
})  # fmt: skip
"""What a server is told of how sums go back to their ranks, from 0.5.21 on."""


@contextlib.contextmanager
def _beside_ranks(config: EngineConfig) -> Iterator[None]:
    """As on a server with data-parallel ranks.

    Its environment asks for masks of their padded tokens (SGLANG_OPT_MASK_DP_PAD_MOE), and maybe
    for tokens gathered from ranks of various sizes (SGLANG_DP_USE_GATHERV); modules read it as they
    are imported.
    """
    if config.dp_size == 1:
        yield
        return
    ranks = engine_module(_DATA_RANKS)
    switches = {"_MASK_DP_PAD_MOE": True, "_USE_DP_GATHERV": config.expert_exchange == "gatherv"}
    with replaced_names([engine_module(DISPATCHER), ranks], switches), gathered_apart():
        yield


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
_IDS_OF_KERNELS = ("*.expert_ids", "*.experts_ids", "*.topk_ids")
_EXCUSES = (
    *(
        Excuse(
            name,
            "meaning",
            "sglang topk.py _mask_topk_ids_padded_region; token_dispatcher/standard.py dispatch",
            "numbers of experts, of which -1 is none; declared fields judge them",
        )
        for name in _IDS_OF_KERNELS
    ),
    *(
        Excuse(
            name,
            "live",
            "sglang forward_batch_info.py prepare_mlp_sync_batch: get_dp_padding_mode",
            "of tokens of all ranks, which lie elsewhere where ranks are padded otherwise; "
            "declared fields judge them",
            only_with="dp_size",
        )
        for name in _IDS_OF_KERNELS
    ),
)


class MoeTarget(TritonTarget):
    """A block of experts on the sglang release that this process holds."""

    excuses = (*EXCUSES, *_EXCUSES)
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
        if config.shared_experts == "fused" and config.experts_per_token == config.num_experts:
            return "beside a fused shared expert a router leaves some out: raise num_experts"
        return super().refused(config)

    def unserved(self, config: EngineConfig) -> str | None:
        lacks = {
            "gatherv": not hasattr(engine_module(_DATA_RANKS), "_USE_DP_GATHERV"),
            "scatter": not has_module(BOUNDARY),
            "reduce": not has_module(BOUNDARY),
        }
        if config.expert_quantisation != UNQUANTISED and not has_quantised_experts():
            return f"{config.expert_quantisation} is quantised by kernels of later releases"
        if lacks.get(config.expert_exchange):
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
