"""EAGLE's drafts on a backend for each step, which prepares metadata as for a decode of its own.

Targets such as `sglang-nsa-draft`. On most of them lengths do not grow with the steps: no step of a
draft sees itself, nor the drafts before it (`draft_reach`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.fields import Field, PaddingRule
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends import fa3, flashmla, nsa, trtllm_mha, trtllm_mla
from fuzzgraph.targets.sglang.backends.attention_backend import (
    AttentionBackend,
    as_read,
    metadata_fields,
)
from fuzzgraph.targets.sglang.backends.multi_step_draft import (
    MultiStepDraftSession,
    MultiStepDraftTarget,
    drafts_on,
)
from fuzzgraph.targets.sglang.stubs.workspaces import keep_workspaces_small


@dataclass(frozen=True, slots=True)
class StepwiseBackend:
    """A backend of a single step and the class that holds one for each."""

    of_one_step: AttentionBackend
    of_all_steps: tuple[str, ...]
    """Under the names of its releases, as `AttentionBackend.places` has the modules."""
    held: Callable[[Any, int | None], Any] | None = None
    """As `AttentionBackend.held`, where a step's metadata lie elsewhere."""
    reach: Literal["drafts", "past"] = "past"
    """Whether lengths grow with the steps (`draft_reach`)."""
    more: tuple[tuple[str, Any], ...] = ()
    """What drafts have of the dimensions beside those of other drafts, as its decodes have them."""

    def name_of_all_steps(self) -> str:
        """The class in this release."""
        module = self.of_one_step.place()[0]
        names = zip(self.of_one_step.places, self.of_all_steps, strict=True)
        return next(name for (place, _), name in names if place == module)


def _of_graph(backend: Any, size: int | None) -> Any:
    """Up to 0.5.14 what is copied to three steps at once is no step's current metadata."""
    return backend.forward_metadata if size is None else backend.decode_cuda_graph_metadata[size]


_BACKENDS = {
    "fa3-mla": StepwiseBackend(fa3.FA3_MLA, ("FlashAttentionMultiStepBackend",), reach="drafts"),
    "flashmla": StepwiseBackend(flashmla.FLASHMLA, ("FlashMLAMultiStepDraftBackend",)),
    "nsa": StepwiseBackend(
        nsa.NSA,
        ("DeepseekSparseAttnMultiStepBackend", "NativeSparseAttnMultiStepBackend"),
        held=_of_graph,
    ),
    "trtllm-mha": StepwiseBackend(
        trtllm_mha.TRTLLM_MHA,
        ("TRTLLMHAAttnMultiStepDraftBackend",),
        reach="drafts",
        more=(("kv_dtypes", ("auto", "float8_e4m3fn")), ("dtypes", ("float32", "bfloat16"))),
    ),
    "trtllm-mla": StepwiseBackend(trtllm_mla.TRTLLM_MLA, ("TRTLLMMLAMultiStepDraftBackend",)),
}


def _at_step(field: Field, step: int, *, grow: bool) -> Field:
    """What a decode's field is at a step of a draft, whose rows compute one token each.

    Args:
        grow: whether rows, padded ones too, have a key more at each step.
    """
    lens = f"draft_lens:{step}"
    if field.axis == "page_table":
        return replace(field, repeats=lens)
    repeats = {"seq_lens": lens, "token_lens": lens, "new_lens": "one_each"}
    field = replace(field, repeats=repeats.get(field.repeats, field.repeats))
    if grow and field.selects == "length" and field.repeats == lens:
        return replace(field, padding=PaddingRule("fill", field.padding.value + step + 1))
    return field


class StepwiseDraftTarget(MultiStepDraftTarget):
    """EAGLE's draft runner on one backend of the release that this process holds."""

    judged = "one branch"

    def __init__(self, name: str, backend: str | StepwiseBackend) -> None:
        self._steps = _BACKENDS[backend] if isinstance(backend, str) else backend
        single = self._steps.of_one_step
        super().__init__(name, single)
        decodes = single.target(name, "decode")
        self.any_page_size = decodes.any_page_size
        self.about = f"{single.name}{single.part} on each EAGLE draft step"
        self.also_stood_in_for = (*single.stood_in_for, "what samples drafts")
        own = drafts_on(decodes.capabilities, self.capabilities)
        self.capabilities = own.replace(
            draft_reaches=(self._steps.reach,), **dict(self._steps.more)
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> StepwiseDraftSession:
        return StepwiseDraftSession(config, graphs, self._steps)

    def load(self) -> None:
        keep_workspaces_small()
        super().load()


class StepwiseDraftSession(MultiStepDraftSession):
    """One draft runner and the backends of its steps."""

    def __init__(
        self, config: EngineConfig, graphs: GraphEngine, backends: StepwiseBackend
    ) -> None:
        self.attends_on = backends.of_one_step
        self.of_all_steps = backends.name_of_all_steps()
        self._held = backends.held or self.attends_on.held
        self._read: dict[Hashable, dict[str, torch.Tensor]] = {}
        self._declared = metadata_fields(config, self.attends_on)
        super().__init__(config, graphs)

    def fields_of_step(self, name: str, step: int) -> tuple[Field, ...]:
        """Those of a decode, whose rows have as many keys as the step sees."""
        shown = [self._declared[each] for each in self.attends_on.fields if each in self._declared]
        grow = self._config.draft_reach == "drafts"
        return tuple(
            replace(_at_step(field, step, grow=grow), name=f"{name}_{field.name}")
            for field in shown
        )

    def remember(self, key: Hashable) -> None:
        super().remember(key)
        assert isinstance(key, int)
        self._read[key] = self._metadata_tensors(key)

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for step, backend in enumerate(self._attending):
            for name, tensor in self.attends_on.read(self._held(backend, size)).items():
                found[f"step{step}_{name}"] = tensor
        return found

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        size = self._size
        held = self._metadata_tensors(None) if size is None else self._read[size]
        found: dict[str, torch.Tensor] = {}
        for step in range(len(self._attending)):
            prefix = f"step{step}_"
            used = {
                name.removeprefix(prefix): tensor.clone()
                for name, tensor in held.items()
                if name.startswith(prefix)
            }
            read = as_read(used, lens, self._config.page_size)
            found |= {f"{prefix}{name}": tensor for name, tensor in read.items()}
        return found
