"""The static inputs of EAGLE's draft runners, and what their padding promises."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.fields import RANK_COUNTS, input_fields, track_slots
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import (
    DRAFT,
    DRAFT_EXTEND,
    FROZEN,
    RunnerKind,
)
from fuzzgraph.targets.sglang.runners.eagle_multi_layer import MULTI_LAYER

_SUM = "sglang replay of the runner: builders get the lengths of all padded rows and their sum"
_CHOSEN = "sglang eagle_draft_cuda_graph_runner.py: tokens of padded rows index embeddings, hence 0"
_PADS = "forward_batch_info.py _pad_inputs_to_size"
_WIDTH = f"sglang eagle_draft_extend_cuda_graph_runner.py, {_PADS}: padded rows get the whole width"
_BESIDE = f"sglang {_PADS}: padded rows have no past"
_TRACKED = "sglang draft_checkpoint.py refresh_track_indices: padded rows get the reserved slot"


COUNTED = RANK_COUNTS[0]
"""What a draft-extend counts in tokens; its other count is of rows. A draft counts the tokens of
one of its steps."""


def draft_inputs(kind: RunnerKind, *, ranks: bool = False, tracks: bool = False) -> list[str]:
    """Static buffers that a replay reads.

    Args:
        ranks: whether there are other data-parallel ranks.
        tracks: whether the model that is drafted for keeps states for its prefix cache.
    """
    names = ["positions", "req_pool_indices", "seq_lens", "seq_lens_cpu"]
    if kind is not FROZEN:
        names.append("out_cache_loc")
    if kind is DRAFT:
        names.append("topk_index")
    if kind in (DRAFT_EXTEND, MULTI_LAYER):
        names += ["input_ids", "extend_seq_lens"]
        names += ["mamba_track_indices"] if tracks else []
    if kind is DRAFT_EXTEND:  # with several layers, counts choose among tokens, no memory
        names += ["num_accept_tokens", "accept_length"]
        names += [COUNTED] if ranks else []
    return names


def draft_fields(config: EngineConfig, fill: int, extends: bool, packed: bool) -> tuple[Field, ...]:
    """Declared inputs of one session.

    Args:
        fill: length of padded rows, which the backend chooses.
        extends: whether it catches up with accepted tokens, and does not draft.
        packed: whether it is handed the accepted ones alone.
    """
    # Where rows have all their places, they have as many keys.
    lens = "widened_lens" if extends and not packed else ""
    unseen = {*RANK_COUNTS} - ({COUNTED} if extends and config.dp_size > 1 else set())
    common = [each for each in input_fields(config, fill, lens) if each.name not in unseen]
    total = fields.value("seq_lens_sum", source=_SUM)
    if not extends:
        chosen = Field("topk_index", "requests", "nothing", PaddingRule("fill", 0), source=_CHOSEN,
                       repeats="input_ids")  # fmt: skip
        return (*common, total, chosen)
    repeated = {
        "extend_seq_lens": "new_lens" if packed else "draft_width",
        "num_accept_tokens": "new_lens",
        "accept_length": "new_lens",
    }
    widths = (
        fields.lengths(name, fill=config.draft_tokens, repeats=repeats, source=_WIDTH)
        for name, repeats in repeated.items()
    )
    # A batch that is padded without a graph says it for both sides.
    mirror = fields.lengths(
        "extend_seq_lens_cpu", fill=config.draft_tokens, repeats="draft_width", source=_WIDTH
    )
    past = (
        fields.lengths(name, fill=0, repeats="cached_lens", source=_BESIDE)
        for name in ("extend_prefix_lens", "extend_prefix_lens_cpu")
    )
    tracked = (track_slots(_TRACKED),) if config.state_track_interval else ()
    return (*common, total, *widths, mirror, *past, *tracked)
