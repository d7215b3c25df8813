"""`--enable-lora`: linear layers with adapters beside Triton attention.

The engine's own `LoRAManager` wraps linear layers, loads adapters into its memory pool as batches
need them, and prepares what its kernels read; `--lora-backend` chooses these, `triton` or `csgmv`
(`triton_v2`: `lora_v2.py`). A server has `--max-loras-per-batch` slots, one of them for requests
without an adapter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch

from fuzzgraph.adapted_layer import (
    ADAPTED,
    ADAPTED_INPUT,
    ADAPTED_OF_RANKS,
    HIGHEST_RANK,
    adapted_columns,
)
from fuzzgraph.case import EngineConfig, Mode, captured_size
from fuzzgraph.case.adapters import most_adapters
from fuzzgraph.data_ranks import rank_sizes
from fuzzgraph.experts.adapted import ADAPTED_EXPERTS
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.adapted_experts_model import FUSED
from fuzzgraph.targets.sglang.adapted_model import (
    EMBEDDINGS,
    LINEAR,
    AdaptedModel,
)
from fuzzgraph.targets.sglang.adapter_segments import (
    HELD,
    ROOM_FOR_ALL,
    adapter_fields,
    ranks_of_tokens,
    segment_tensors,
)
from fuzzgraph.targets.sglang.attention_model import outputs_in
from fuzzgraph.targets.sglang.backends.triton import (
    OF_ONE_RANK,
    TritonSession,
    TritonTarget,
    triton_backend,
)
from fuzzgraph.targets.sglang.decode_session import DATA_RANKS
from fuzzgraph.targets.sglang.excuses import adapters, decode
from fuzzgraph.targets.sglang.experts_beside_ranks import around_modules, exchange_arguments
from fuzzgraph.targets.sglang.forward_batch.gathered_tokens import load_model_runner, pad_for_all
from fuzzgraph.targets.sglang.release import SGLANG, engine_module, has_module, is_before
from fuzzgraph.targets.sglang.stubs.adapter_ranks import AdapterRanks, name_of
from fuzzgraph.targets.sglang.stubs.custom_all_reduce import with_custom_all_reduce
from fuzzgraph.targets.sglang.stubs.fused_experts import (
    MODULES,
    SETTINGS,
    align_adapters_as_on_cuda,
    run_experts_as_on_cuda,
)
from fuzzgraph.targets.sglang.stubs.loaded_adapters import LOADING, MANAGER, load_adapters
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.tp_groups import gathered_apart
from fuzzgraph.world import Batch

_BACKENDS = "sglang.srt.lora.backend"
_FILES = ("triton_backend", "chunked_backend")
_TUNED = (
    "sglang.kernels.ops.lora.dense.lora_tuning_config",
    "sglang.kernels.ops.gemm.lora_tuning_config",
    "sglang.srt.lora.triton_ops.lora_tuning_config",
)
"""Where kernels look for block sizes that were tuned for a device, by its name."""
SORTS = "what sorts tokens by expert (a model)"
_EXPERTS_SINCE = (0, 5, 16)
"""The oldest release on which adapters of experts were driven."""
Kernels = Literal["triton", "csgmv", "triton_v2", "uno_cublas"]


class LoraSession(TritonSession):
    """One manager of adapters and one decode runner with its captured graphs."""

    model_class = AdaptedModel
    _experts = "triton"
    """Who runs the experts, by `--moe-runner-backend`."""
    _ranks: AdapterRanks | None = None
    """All data-parallel ranks, where there are several."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kernels: Kernels) -> None:
        self._kernels = kernels
        super().__init__(config, graphs)

    def _server_arguments(self, config: EngineConfig) -> Mapping[str, Any]:
        return {
            "enable_lora": True,
            "lora_backend": self._kernels,
            "max_loras_per_batch": config.max_loras + 1,
            "max_lora_rank": HIGHEST_RANK,
            "lora_eviction_policy": config.lora_eviction,
            "experts_shared_outer_loras": config.experts_shared_outer_loras,
            "lora_use_virtual_experts": config.lora_use_virtual_experts,
            **({"moe_runner_backend": self._experts} if config.num_experts else {}),
            **exchange_arguments(config),
        }

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        return _beside_ranks() if self._config.dp_size > 1 else cuda_on_cpu()

    @property
    def computes_for_others(self) -> bool:  # type: ignore[override]
        return self._config.dp_size > 1

    def _open_backend(self, runner: ModelRunner) -> Any:
        model = runner.model
        assert isinstance(model, AdaptedModel)
        ranks = runner.configuration.everyone
        self._ranks = ranks if isinstance(ranks, AdapterRanks) else None
        if self._ranks is not None:
            model.open_ranks(self._ranks)
        if self._config.num_experts:
            call_with_known(
                engine_module(SETTINGS).initialize_moe_config, server_args=runner.server_args
            )
        self._manager = load_adapters(self._config, runner, model, self._kernels)
        runner.lora_manager = self._manager
        if self._config.num_experts:
            call_with_known(
                engine_module(MANAGER).init_lora_cuda_graph_moe_buffers,
                model=self._manager.base_model,
                lora_manager=self._manager,
                dtype=runner.dtype,
                server_args=runner.server_args,
            )
        if self._ranks is not None:
            self._ranks.find_slots(self._slot_of)
        return triton_backend(runner)

    def _translate(self, batch: Batch) -> Any:
        """With an adapter for each request, loaded and told to the kernels, as
        `ForwardBatch.init_new` leaves a batch; beside other ranks that comes later."""
        given = super()._translate(batch)
        given.lora_ids = [self._names.get(adapter) for adapter in batch.adapters.tolist()]
        if not batch.raw_bs:  # an idle batch comes without
            getattr(self._manager, "reset_lora_batch", lambda: None)()
        elif self._ranks is None:
            self._manager.fetch_new_loras(set(given.lora_ids))
            self._manager.prepare_lora_batch(given)
        if self._ranks is not None:
            self._ranks.meet(batch)
            given.can_run_decode_cuda_graph = self._voted(batch)
        return given

    def _voted(self, batch: Batch) -> bool:
        """Whether all ranks have agreed to take a graph (sglang scheduler_components/dp_attn.py,
        `_local_decode_cuda_graph_vote`)."""
        return self._fits(batch) and not self.ran_eagerly

    def _fits(self, batch: Batch) -> bool:
        size = captured_size(self._config, self._config.modes[0], batch.largest_rank)
        return size is not None

    def _takes_no_graph(self, batch: Batch) -> bool:
        """In a run without a graph this rank has voted for none."""
        if self._ranks is None:
            return super()._takes_no_graph(batch)
        return batch.via == "eager" or bool(batch.others_prefill) or not self._fits(batch)

    def _pad_for_ranks(self, given: Any) -> None:
        """The model runner's own method, which tells the manager of the padded batch."""
        if self._ranks is None:
            super()._pad_for_ranks(given)
        else:
            pad_for_all(given, self._model_runner)

    def _slot_of(self, adapter: int) -> int:
        """Where an adapter lies in the pool, 0 for requests without one."""
        found: int = self._manager.memory_pool.uid_to_buffer_id[self._names.get(adapter)]
        return found

    @property
    def _names(self) -> Mapping[int, str]:
        return {adapter: name_of(adapter) for adapter in range(1, most_adapters(self._config) + 1)}

    @property
    def roots(self) -> Mapping[str, object]:
        return {**super().roots, "lora_manager": self._manager}

    def _more_fields(self, config: EngineConfig) -> tuple[Field, ...]:
        return adapter_fields(config, self._of_padded_rows(config))

    def _of_padded_rows(self, config: EngineConfig) -> PaddingRule:
        """They have no adapter where segments cover live rows alone: those of Triton's kernels
        since decodes merge them by adapter, and csgmv's since a graph holds room for all of them.
        In verifies Triton's kernels have a segment for each row, without one behind the live ones
        from 0.5.21 on. Before, padded rows keep what the last batch had."""
        triton = (0, 5, 21) if config.modes == ("target_verify",) else (0, 5, 11)
        covered = {"triton": triton, "csgmv": ROOM_FOR_ALL}[self._kernels]
        return common.FREE if is_before(covered) else PaddingRule("fill", 0)

    def _read(self, *, in_graph: bool) -> Any:
        """What the kernels of the last batch read, by the engine's choice; None for none."""
        backend = self._manager.lora_backend
        kind = "cuda_graph_" if in_graph else ""
        merged = getattr(backend, f"{kind}sgemm_batch_info", None)
        if self._verifies:  # a decode's alone are merged by adapter
            merged = None
        return merged or getattr(backend, f"{kind}batch_info", None)

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        read = {} if size is None else self._held(self._read(in_graph=True))
        return {**super()._metadata_tensors(size), **read}

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        info = self._read(in_graph=not self.ran_eagerly)
        found = {**super()._used(lens), "lora_pool": self._pool(), **self._ranks_of_all()}
        if info is None:
            return found
        held = {name: tensor.clone() for name, tensor in self._held(info).items()}
        return {
            **found,
            "lora_ranks_of_tokens": self._ranks_of_tokens(info, self._tokens(len(lens))),
            **{field.name: held[field.name] for field in HELD if field.name in held},
        }

    def _ranks_of_all(self) -> dict[str, torch.Tensor]:
        """int64 [tokens of all ranks] the same of what ranks compute for each other."""
        if self._ranks is None or self._past is None:
            return {}
        info = self._manager.lora_backend.global_sgemm_batch_info
        starts, sizes = self._ranks.starts.tolist(), rank_sizes(self._past[0], self._config)
        all_tokens = max(map(sum, zip(starts, sizes, strict=True)))
        ranks = self._ranks_of_tokens(info, all_tokens)
        own = [ranks[first : first + rows] for first, rows in zip(starts, sizes, strict=True)]
        return {"lora_ranks_of_all": torch.cat(own)}

    def _pool(self) -> torch.Tensor:
        """int64 [filled slots] the adapter in each, 0 for requests without one; in rising order,
        for the order of slots is nobody's business."""
        numbers: Mapping[str | None, int] = {name: number for number, name in self._names.items()}
        slots = self._manager.memory_pool.buffer_id_to_uid
        filled = [uid for uid in slots if uid is None or isinstance(uid, str)]
        return torch.tensor(sorted({None: 0, **numbers}[uid] for uid in filled))

    def _held(self, info: Any) -> dict[str, torch.Tensor]:
        """Tensors that the kernels read."""
        return segment_tensors(info)

    def _ranks_of_tokens(self, info: Any, tokens: int) -> torch.Tensor:
        """int64 [tokens] rank of the adapter that kernels apply to each; 0 if they apply none."""
        return ranks_of_tokens(info, tokens)

    def _tokens(self, rows: int) -> int:
        return len(self._last_batch.input_ids) if self.ran_eagerly else self._padded_tokens(rows)

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        experts = (ADAPTED_EXPERTS,) if self._config.num_experts else ()
        own = () if mode == "idle" else (ADAPTED, *experts)
        of_ranks = () if self._ranks is None else (ADAPTED_OF_RANKS,)
        return (*super().promised_outputs(mode), *own, *of_ranks)

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        found = super().shown_outputs()
        if self._ranks is not None:
            assert isinstance(self._attention, AdaptedModel) and self._past is not None
            sizes = rank_sizes(self._past[0], self._config)
            found[ADAPTED_OF_RANKS] = self._attention.given_of_ranks(sizes)
        return found

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        shown = outputs.next_token_logits
        behind = ADAPTED_INPUT if self._config.num_experts else 0
        columns = adapted_columns(self._config)
        first = shown.shape[1] - columns - behind
        attended = type(outputs)(next_token_logits=shown[:, :first].contiguous())
        found = outputs_in(attended, self._config)
        found[ADAPTED] = shown[:, first : first + columns].clone()
        if behind:
            found[ADAPTED_EXPERTS] = shown[:, first + columns :].clone()
        return found


@contextlib.contextmanager
def _beside_ranks() -> Iterator[None]:
    with cuda_on_cpu(), gathered_apart():
        yield


class LoraTarget(TritonTarget):
    """Layers with adapters on the sglang release that this process holds."""

    excuses = (*decode.EXCUSES, *adapters.OF_EXPERTS)
    session: type[LoraSession] = LoraSession
    also_stood_in_for: tuple[str, ...] = (
        "the number of cores",
        "files of adapters",
        "the device's name",
        SORTS,
    )

    def __init__(
        self, name: str, kernels: Kernels, mode: Literal["decode", "target_verify"] = "decode"
    ) -> None:
        super().__init__(name, mode)
        self._kernels = kernels
        self.about = f"LoRA adapters by {kernels} kernels, {mode} graphs"
        self.capabilities = self.capabilities.replace(
            modes=(mode,),
            loras=True,
            lora_evictions=("lru", "fifo"),
            pinned_loras=True,
            adapted_embeddings=True,
            experts=True,
            lora_experts_dtype="float16",
            max_experts_per_token=3,
            experts_shared_outer_loras=True,
            lora_use_virtual_experts=True,
            **{**OF_ONE_RANK, **(DATA_RANKS if kernels == "triton" else {})},
        )
        if kernels == "triton":
            self.capabilities = self.capabilities.replace(modes=(mode, "idle"))
            self.excuses = (*self.excuses, *adapters.OF_RANKS)
            self.also_stood_in_for = (*self.also_stood_in_for, "what other ranks have")

    def refused(self, config: EngineConfig) -> str | None:
        if not config.max_loras:
            return "the server has LoRA enabled: max_loras must be 1 or more"
        for name in ("adapted_embeddings", "num_experts"):
            if getattr(config, name) and config.dp_size > 1:
                return f"{name} beside data-parallel ranks is not driven"
        return super().refused(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> LoraSession:
        return self.session(config, graphs, self._kernels)

    def load(self) -> None:
        super().load()
        with cuda_on_cpu():
            SGLANG.load(LINEAR, EMBEDDINGS, *LOADING, *(f"{_BACKENDS}.{each}" for each in _FILES))
            if self.capabilities.max_dp_size > 1:
                self._load_ranks()
            self._load_experts()
        if not torch.cuda.is_available():
            for name in filter(has_module, _TUNED):
                engine_module(name).get_device_name = lambda: "CPU"

    def _load_experts(self) -> None:
        if is_before(_EXPERTS_SINCE):
            self.capabilities = self.capabilities.replace(
                experts=False, experts_shared_outer_loras=False, lora_use_virtual_experts=False
            )
            return
        SGLANG.load(FUSED, *MODULES)
        if not torch.cuda.is_available():
            run_experts_as_on_cuda()
            align_adapters_as_on_cuda()

    def _load_ranks(self) -> None:
        """Kernels that serve data-parallel ranks say so, from 0.5.21 on at the latest."""
        kernels = engine_module(f"{_BACKENDS}.{_FILES[0]}").TritonLoRABackend
        if getattr(kernels, "supports_dp_attention", False):
            SGLANG.load(*around_modules())
            load_model_runner()
            self.capabilities = with_custom_all_reduce(self.capabilities)
        else:
            self.capabilities = self.capabilities.replace(max_dp_size=1)
