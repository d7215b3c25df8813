"""Memory of the host in the place of the device's, by one line of the engine; opened by name.

On a CPU both hold the same numbers, and nothing that is computed differs.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.attention_backend import BackendTarget
from fuzzgraph.targets.sglang.backends.multi_layer import LayersTarget
from fuzzgraph.targets.sglang.backends.multi_step_draft import MultiStepDraftTarget
from fuzzgraph.targets.sglang.backends.stepwise_draft import StepwiseDraftTarget
from fuzzgraph.targets.sglang.backends.triton import TRITON
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

_SPARSE = "sglang.srt.layers.attention.dsa_backend:DeepseekSparseAttnMultiStepBackend"
_LAYERS = (
    "sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner:"
    "MultiLayerEagleDraftExtendCudaGraphRunner"
)
_HANDED = """bs,
                    forward_batch.seq_lens,
                    forward_batch.req_pool_indices,
                    kv_indices,
"""


def _drafts() -> MultiStepDraftTarget:
    return StepwiseDraftTarget("sglang-nsa-draft", "nsa")


prepared_by_the_hosts_lengths = with_a_line_changed(
    _drafts,
    _SPARSE,
    "init_forward_metadata_out_graph",
    "seq_lens=forward_batch.seq_lens,",
    "seq_lens=forward_batch.seq_lens_cpu,",
)
captured_with_the_hosts_lengths = with_a_line_changed(
    lambda: LayersTarget("sglang-triton-multi-layer", "triton"),
    _LAYERS,
    "get_forward_batch",
    "seq_lens = buffers.seq_lens[:bs]",
    "seq_lens = buffers.seq_lens_cpu[:bs]",
)


def eager_by_the_hosts_lengths() -> BackendTarget:
    """A step without a graph lists keys by the lengths that the scheduler keeps on the host."""

    def change(session: Any) -> None:
        other = _HANDED.replace("seq_lens", "seq_lens_cpu")
        change_line(session.backend, "init_forward_metadata", _HANDED, other)

    return with_changed_sessions(BackendTarget("sglang-triton", TRITON, "decode"), change)
