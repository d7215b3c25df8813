"""EAGLE's draft-extend on Qwen's sparse attention: `sglang-qsa-draft-extend`.

A draft model of Qwen4-Exp has an indexer of its own, with keys of groups and a ring for each
request in its own pool (sglang qwen4_exp_mtp.py, draft_utils.py). Real are the draft-extend runner
and its input buffers, the backend, the indexer and the pool; stood in for is what `qsa` says. What
a step leaves of keys of groups is judged beside what `draft_extend` judges.
"""

from __future__ import annotations

from types import MappingProxyType

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS
from fuzzgraph.targets.sglang.backends.draft_extend import DraftExtendSession, DraftExtendTarget
from fuzzgraph.targets.sglang.backends.left_keys import LeavesKeys
from fuzzgraph.targets.sglang.backends.qsa import QSA
from fuzzgraph.targets.sglang.excuses.decode import GROUP_EXCUSES

__all__ = ["QsaDraftExtendSession", "QsaDraftExtendTarget"]


class QsaDraftExtendSession(LeavesKeys, DraftExtendSession):
    """One draft-extend runner, whose steps leave keys of groups."""

    also_promised = (GROUP_KEYS, GROUP_STRAYS)


class QsaDraftExtendTarget(DraftExtendTarget):
    """EAGLE's draft-extend runner on the sparse attention of the release in this process."""

    excuses = (*DraftExtendTarget.excuses, *GROUP_EXCUSES)
    backends = MappingProxyType({"qsa": QSA})
    first = (0, 5, 20)

    def __init__(self, name: str, backend: str = "qsa") -> None:
        super().__init__(name, backend)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> QsaDraftExtendSession:
        return QsaDraftExtendSession(config, graphs, self._kind, self.backend)
