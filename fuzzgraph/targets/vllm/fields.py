"""What each input of vLLM's V1 runner promises, with the lines of vLLM that promise it."""

from __future__ import annotations

from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.world import RESERVED_PAGE

_RUNNER = "vLLM gpu_model_runner.py"
_SLOTS = f"{_RUNNER} _get_slot_mappings: PAD_SLOT_ID behind the live tokens"
_LENS = f"{_RUNNER} _prepare_inputs: zeros behind the live rows"
_TABLE = f"{_RUNNER} _build_attention_metadata: fills the rows behind the live ones"
_OFFSETS = f"{_RUNNER} _prepare_inputs: pads so that the offsets never decrease"
_PREFILLING = f"{_RUNNER} _build_attention_metadata: zeroes padded rows, stale after condense()"
_NEW = (
    f"{_RUNNER}: the last token of a new request's prompt is prefill, the ones it samples are not"
)
_BY_PAST = "a request that is new to the runner still computes its prompt; " + _RUNNER
DUMMY_PREFILLING = "dummy_is_prefilling"
"""`is_prefilling` as an idle rank hands it over."""
_DUMMY = (
    f"{_RUNNER} _dummy_run: a dummy batch decodes; backends of Mamba take flagged rows for prefill"
)


def runner_fields() -> tuple[Field, ...]:
    """What the runner hands every attention backend."""
    return (
        common.per_token("input_ids"),
        common.per_token("positions"),
        common.write_slots("slot_mapping", skip=-1, source=_SLOTS),
        Field(
            "seq_lens",
            "requests",
            "length",
            PaddingRule("fill", 0),
            source=_LENS,
            dummy=PaddingRule("fill", 1),
            in_modes=(("idle", common.FREE),),
        ),
        Field(
            "block_table",
            "page_table",
            "page",
            _padded_page(),
            source=_TABLE,
            whole_rows=True,
        ),
        common.offsets("query_start_loc", repeats="new_lens", padding=common.FREE, source=_OFFSETS),
        Field(
            "is_prefilling",
            "requests",
            "nothing",
            PaddingRule("fill", 0),
            source=_PREFILLING,
            unjudged=_NEW,
            past=_BY_PAST,
        ),
        # Apart, because the runner counts all rows of a dummy batch as live ones, and zeroes none.
        Field(
            DUMMY_PREFILLING,
            "requests",
            "nothing",
            PaddingRule("fill", 0),
            source=_DUMMY,
            unjudged="an idle rank has no live rows",
        ),
    )


def _padded_page() -> PaddingRule:
    """Older releases pad with a sentinel, later ones with the null block."""
    utils = engine_module("vllm.v1.attention.backends.utils")
    if hasattr(utils, "NULL_BLOCK_ID"):
        return PaddingRule("reserved", RESERVED_PAGE)
    return PaddingRule("skip", -1)
