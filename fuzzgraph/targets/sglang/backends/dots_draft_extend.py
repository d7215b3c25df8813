"""EAGLE's draft-extend on a Dots model's attention: `sglang-dots-draft-extend`.

A draft model of Dots has one layer, behind a window (sglang dots3_common/nextn.py), on the backend
that `wrap_dots_attention_backend` makes of `FlashAttentionBackend` for drafts. Beside data-parallel
ranks a draft-extend without a graph is planned before its batch is padded for them, so the backend
plans again where its plan no longer fits the batch; on other models each backend lives with it.
Real are the draft-extend runner and its input buffers and what `dots` says. Before the layer stands
one over all latent rows, which this draft model has and the engine's has not: the judged draft head
is behind it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.attention_backend import open_backend
from fuzzgraph.targets.sglang.backends.dots import DOTS, DRAFTS, WRAPPER
from fuzzgraph.targets.sglang.backends.draft_extend import DraftExtendSession, DraftExtendTarget
from fuzzgraph.targets.sglang.backends.recording import watched
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

__all__ = ["DotsDraftExtendSession", "DotsDraftExtendTarget"]

_WRAPS = "DotsSWAMLAAttnBackend"


class DotsDraftExtendSession(DraftExtendSession):
    """One draft-extend runner and the wrapped backend, which is told of every preparation."""

    def _open_backend(self, runner: ModelRunner) -> Any:
        runner.model_config.is_draft_model = True
        latent = open_backend(self.attends_on, runner)
        module = engine_module(WRAPPER)
        with replaced_names([module], {_WRAPS: watched(getattr(module, _WRAPS))}):
            return module.wrap_dots_attention_backend(runner, latent)


class DotsDraftExtendTarget(DraftExtendTarget):
    """EAGLE's draft-extend runner on both layers of the release that this process holds."""

    backends = MappingProxyType({"dots": DOTS})
    first = (0, 5, 19)

    def __init__(self, name: str, backend: str = "dots") -> None:
        super().__init__(name, backend)
        self.capabilities = self.capabilities.replace(
            later_stages=False,
            min_draft_tokens=DRAFTS,
            layer_types=False,
            state_tracking=False,  # its model has no recurrent layers
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DotsDraftExtendSession:
        return DotsDraftExtendSession(config, graphs, self._kind, self.backend)

    def modules(self) -> tuple[str, ...]:
        return (*super().modules(), WRAPPER)
