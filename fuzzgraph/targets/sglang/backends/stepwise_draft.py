"""EAGLE's drafts on a backend for each step, which prepares metadata as for a decode of its own.

Targets such as `sglang-nsa-draft`. Lengths do not grow with the steps: no step of a draft sees
itself, nor the drafts before it (`draft_reach`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends import flashmla, nsa, trtllm_mla
from fuzzgraph.targets.sglang.backends.attention_backend import (
    AttentionBackend,
    as_read,
    metadata_fields,
)
from fuzzgraph.targets.sglang.backends.multi_step_draft import (
    MultiStepDraftSession,
    MultiStepDraftTarget,
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

    def name_of_all_steps(self) -> str:
        """The class in this release."""
        module = self.of_one_step.place()[0]
        names = zip(self.of_one_step.places, self.of_all_steps, strict=True)
        return next(name for (place, _), name in names if place == module)


def _of_graph(backend: Any, size: int | None) -> Any:
    """Up to 0.5.14 what is copied to three steps at once is no step's current metadata."""
    return backend.forward_metadata if size is None else backend.decode_cuda_graph_metadata[size]


_BACKENDS = {
    "flashmla": StepwiseBackend(flashmla.FLASHMLA, ("FlashMLAMultiStepDraftBackend",)),
    "nsa": StepwiseBackend(
        nsa.NSA,
        ("DeepseekSparseAttnMultiStepBackend", "NativeSparseAttnMultiStepBackend"),
        held=_of_graph,
    ),
    "trtllm-mla": StepwiseBackend(trtllm_mla.TRTLLM_MLA, ("TRTLLMMLAMultiStepDraftBackend",)),
}


class StepwiseDraftTarget(MultiStepDraftTarget):
    """EAGLE's draft runner on one backend of the release that this process holds."""

    judged = "one branch"

    def __init__(self, name: str, backend: str | StepwiseBackend) -> None:
        self._steps = _BACKENDS[backend] if isinstance(backend, str) else backend
        single = self._steps.of_one_step
        super().__init__(name, single)
        decodes = single.target(name, "decode")
        self.any_page_size = decodes.any_page_size
        self.about = f"{single.name} on each EAGLE draft step"
        self.also_stood_in_for = (*single.stood_in_for, "what samples drafts")
        own = self.capabilities
        self.capabilities = decodes.capabilities.replace(
            modes=own.modes,
            max_spec_steps=own.max_spec_steps,
            usual_spec_steps=own.usual_spec_steps,
            max_spec_topk=1,
            max_draft_tokens=own.max_draft_tokens,
            seq_len_fill_values=own.seq_len_fill_values,
            row_mixings=own.row_mixings,
            max_tp_size=own.max_tp_size,
            max_dp_size=own.max_dp_size,
            idle_alone=own.idle_alone,
            kv_dtypes=own.kv_dtypes,
            dtypes=own.dtypes,
            draft_reaches=("past",),
            two_batch_overlap=False,
            later_stages=False,
            virtual_pages=False,
            swa_window=False,
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
        return tuple(
            replace(
                field,
                name=f"{name}_{field.name}",
                repeats=field.repeats.replace("seq_lens", f"draft_lens:{step}"),
            )
            for field in shown
        )

    def remember(self, key: Hashable) -> None:
        super().remember(key)
        assert isinstance(key, int)
        self._read[key] = self._metadata_tensors(key)

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for step, backend in enumerate(self.backend.attn_backends):
            for name, tensor in self.attends_on.read(self._held(backend, size)).items():
                found[f"step{step}_{name}"] = tensor
        return found

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        size = self._size
        held = self._metadata_tensors(None) if size is None else self._read[size]
        found: dict[str, torch.Tensor] = {}
        for step in range(len(self.backend.attn_backends)):
            prefix = f"step{step}_"
            used = {
                name.removeprefix(prefix): tensor.clone()
                for name, tensor in held.items()
                if name.startswith(prefix)
            }
            read = as_read(used, lens, self._config.page_size)
            found |= {f"{prefix}{name}": tensor for name, tensor in read.items()}
        return found
