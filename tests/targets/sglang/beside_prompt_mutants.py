"""Planted bugs of decodes beside ranks that prefill, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.gdn import DeltaNetTarget
from fuzzgraph.targets.sglang.backends.kda import ChannelDecayTarget
from tests.targets.sglang.changed_lines import change_line, change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_BATCH = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"
Change = Callable[[Any], None]


def _gdn(change: Change) -> Callable[[], Any]:
    return lambda: with_changed_sessions(DeltaNetTarget("sglang-gdn", "decode"), change)


def _kda(change: Change) -> Callable[[], Any]:
    return lambda: with_changed_sessions(ChannelDecayTarget("sglang-kda", "decode"), change)


def _recurrent(name: str, line: str, other: str) -> Change:
    return lambda session: change_line(session.backend.linear_attn_backend, name, line, other)


def _hybrid(name: str, line: str, other: str) -> Change:
    return lambda session: change_line(session.backend, name, line, other)


def _batches(name: str, line: str, other: str) -> Change:
    return lambda session: change_line_elsewhere(session, _BATCH, name, line, other)


_MODE = "logical_mode = forward_batch.logical_forward_mode"
metadata_by_the_label = _gdn(
    _recurrent("_forward_metadata", _MODE, "logical_mode = forward_batch.forward_mode")
)
layers_by_the_label = _kda(
    _hybrid("forward", "forward_batch.logical_forward_mode", "forward_batch.forward_mode")
)
past_with_the_new_token = _gdn(
    _batches(
        "prepare_mlp_sync_batch",
        "self.extend_prefix_lens = self.seq_lens - 1",
        "self.extend_prefix_lens = self.seq_lens",
    )
)
rows_start_alike = _gdn(
    _batches(
        "prepare_mlp_sync_batch",
        """self.extend_start_loc = torch.arange(
                        bs, dtype=torch.int32, device=self.seq_lens.device
                    )""",
        """self.extend_start_loc = torch.zeros(
                        bs, dtype=torch.int32, device=self.seq_lens.device
                    )""",
    )
)


def graph_beside_prompts() -> Any:
    """The runner takes a graph whatever the ranks have agreed on."""

    def change(session: Any) -> None:
        ask = session.runner._engine.can_run_graph

        def regardless(forward_batch: Any) -> Any:
            forward_batch.can_run_decode_cuda_graph = True
            return ask(forward_batch)

        session.runner._engine.can_run_graph = regardless

    return with_changed_sessions(DeltaNetTarget("sglang-gdn", "decode"), change)
