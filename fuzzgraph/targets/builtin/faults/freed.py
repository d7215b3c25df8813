"""Memory that graphs use and that nobody holds any more."""

from __future__ import annotations

from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.runners.base import GraphRunner


class WeightReleased(GraphRunner):
    """Its graphs are captured with a copy of a weight that is dropped afterwards."""

    def capture(self) -> None:
        own = self.model.pos_embed
        self.model.pos_embed = own.clone()
        super().capture()
        self.model.pos_embed = own


FAULTS = (
    Fault(
        name="vllm-pr-43909-weight-released-after-capture",
        source="vLLM PR 43909: the graph of a draft's sampling reads a weight that only a local"
        " variable held while it was captured",
        kind="freed memory",
        clause="reads",
        trigger="any replay of a decode",
        components=engine(decode=WeightReleased),
        recorded=True,
    ),
)
