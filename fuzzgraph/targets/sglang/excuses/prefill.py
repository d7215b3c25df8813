"""Of prefill graphs."""

from __future__ import annotations

from fuzzgraph.handover import Excuse
from fuzzgraph.targets.sglang.excuses.decode import EXCUSES

_STATIC = "sglang prefill_cuda_graph_runner.py: the batch of a replay is made anew, without them"

_AGREED = "what all groups agreed on before the graph was chosen; no backend reads it"

_LATE_ROWS = (
    "sglang base_attn_backend.py late_layer_num_tokens: says how many rows late layers compute"
)

PREFILL_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    Excuse(
        "*.forward_batch.input_ids",
        "live",
        "sglang mm_utils.py embed_mm_inputs: puts ids of images below the vocabulary, in place",
        "a layer gets embeddings; ids of text alone, and all embeddings, are declared fields",
    ),
    Excuse("*.can_run_*cuda_graph", "fits", _STATIC, _AGREED, where_unread=True),
    Excuse("*.is_extend_in_batch", "fits", _STATIC, _AGREED, where_unread=True),
    Excuse(
        "*.late_layer_num_tokens.*",
        "form",
        _LATE_ROWS,
        "data-parallel ranks ask before they choose a graph, of an idle rank's batch too",
        where_unread=True,
    ),
)

HYBRID_PREFILL_EXCUSES: tuple[Excuse, ...] = (
    *PREFILL_EXCUSES,
    Excuse(
        "*.static_forward_batch.global_num_tokens_gpu",
        "live",
        "sglang prefill_cuda_graph_runner.py: a graph's own batch holds its bucket for each rank",
        "the exchange asks for it; no recurrent backend does",
        where_unread=True,
    ),
    Excuse(
        "HybridLinearAttnBackend.mamba_track_*",
        "missing",
        "sglang 0.5.13 breakable_cuda_graph_runner.py: what a graph runs on is told of no states to"
        " keep",
        "metadata are made from the batch itself, which is told; kept states are judged",
    ),
)

_VIEW_OF_LIVE = (
    "sglang prefill_cuda_graph_runner.py _prepare_forward_metadata_for_replay: a copy of the live "
    "batch whose requests alone are padded"
)

_READ_ENDS = "sglang base_attn_backend.py: says when tables are read no more, prepares nothing"

FULL_PREFILL_EXCUSES: tuple[Excuse, ...] = (
    *PREFILL_EXCUSES,
    *(
        Excuse(
            "*.init_forward_metadata_out_graph.forward_batch.*",
            rule,
            _VIEW_OF_LIVE,
            "the graph reads buffers of its own; what is prepared of the view is read",
            where_unread=True,
        )
        for rule in ("form", "kind", "missing")
    ),
    Excuse(
        "*.resolve_prefill_shared_read_ends.*",
        "form",
        _READ_ENDS,
        "it waits and computes nothing",
        where_unread=True,
    ),
)

_CAPTURED_BATCH = (
    "sglang prefill_cuda_graph_runner.py _prepare_chunked_prefix_replay: the batch of the capture, "
    "with prefixes of this step"
)
_NO_HOOK = "the backend prepares nothing there (base_attn_backend.py); kernels read the buffers"
_CHUNKS = (
    "sglang prefill_cuda_graph_runner.py _resolve_prefix_chunk_shape: a graph's chunks are of its "
    "slots; a batch without a graph has fewer and longer ones (get_max_chunk_capacity)"
)
_EACH_CHUNK = "which keys each chunk has is judged by the output that is merged of all"

LATENT_PREFILL_EXCUSES: tuple[Excuse, ...] = (
    *FULL_PREFILL_EXCUSES,
    *(
        Excuse(
            "*.prepare_full_cuda_graph_chunked_prefix.forward_batch.*",
            rule,
            _CAPTURED_BATCH,
            _NO_HOOK,
            where_unread=True,
        )
        for rule in ("live", "form", "kind", "missing", "fits")
    ),
    *(
        Excuse("flash_attn_varlen_func*", rule, _CHUNKS, _EACH_CHUNK)
        for rule in ("live", "meaning")
    ),
    *(Excuse(f"*.forward.{name}", "form", _CHUNKS, _EACH_CHUNK) for name in "kv"),
    *(
        Excuse(kernel, "missing", _CHUNKS, _EACH_CHUNK)
        for kernel in ("flash_attn_varlen_func*", "merge_state_v2")
    ),
)

_DECIDED = (
    "sglang attention_backend_handler.py _handle_attention_backend: decided by the batch of a "
    "capture, which has as much cached as the graph's chunks hold"
)
_EITHER_WAY = "outputs are judged in either way"

DEEPSEEK_PREFILL_EXCUSES: tuple[Excuse, ...] = (
    *LATENT_PREFILL_EXCUSES,
    Excuse("flash_attn_with_kvcache", "missing", _DECIDED, _EITHER_WAY),
    Excuse("*.forward.q", "form", _DECIDED, _EITHER_WAY),
)
