"""What each input of vLLM's V2 runner promises, with the lines of vLLM that promise it."""

from __future__ import annotations

from dataclasses import replace

from fuzzgraph.case import EngineConfig
from fuzzgraph.fields import TOLD
from fuzzgraph.handover import Excuse
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.vllm.answers import SAMPLED, answer_fields

LENS_ON_HOST = "seq_lens_cpu_upper_bound"
"""Without drafts that may be rejected, the bound is the length."""
_TABLES = "vLLM gpu/block_table.py"
_INPUTS = "vLLM gpu/input_batch.py"
_RUNNER = "vLLM gpu/model_runner.py"
_SLOTS = f"{_TABLES} _compute_slot_mappings_kernel: PAD_SLOT_ID behind the live tokens"
_TABLE = f"{_TABLES} _gather_block_tables_kernel zeroes padded rows, get_dummy_block_tables all"
_LENS = f"{_INPUTS} _prepare_pos_seq_lens_kernel: zeros behind the live rows"
_OFFSETS = f"{_RUNNER} prepare_inputs: pads so that the offsets never decrease"
_BOUNDS = f"{_RUNNER} prepare_inputs: padded entries are left at zero"
_KEPT = "drafts of a request that is new to the runner are placeholders, of which none stays"
_ANSWER = "vLLM gpu/async_utils.py AsyncOutput.get_output"
_FLAGS = "vLLM gpu/model_states/default.py prepare_attn: flags of the live rows"

EXCUSES: tuple[Excuse, ...] = (
    Excuse(
        "*.is_prefilling",
        "form",
        _FLAGS,
        "no builder of attention reads them; hybrid models have padded ones of their own",
    ),
)


def v2_runner_fields(config: EngineConfig) -> tuple[Field, ...]:
    """What the runner hands every attention backend, and the server."""
    mode = config.modes[0]
    # Of each row of a dummy batch, `InputBatch.make_dummy`.
    width = config.draft_tokens if mode == "target_verify" else 1
    dummy = PaddingRule("fill", width)
    answer: tuple[Field, ...] = ()  # the middle of a prompt gives none
    if mode == "decode":
        answer = (common.value(SAMPLED, repeats="next_tokens"),)
    elif mode == "target_verify":
        answer = answer_fields(_ANSWER, _KEPT)
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
            # Builders may have a length of 1 at capture, and a dummy batch is built as one.
            dummy=dummy if width == 1 else common.FREE,
        ),
        common.page_table("block_table", whole_rows=True, source=_TABLE),
        common.offsets(
            "query_start_loc",
            repeats="new_lens",
            padding=PaddingRule("fill", 0),
            dummy=dummy,
            source=_OFFSETS,
        ),
        Field(
            LENS_ON_HOST,
            "requests",
            "length",
            PaddingRule("fill", 0),
            source=_BOUNDS,
            repeats="seq_lens",
            dummy=dummy,
        ),
        # The flags of live rows alone, in the batch's order.
        replace(
            common.value("is_prefilling", repeats=TOLD, source=_FLAGS),
            past="a request that is new to the runner still computes its prompt",
        ),
        *answer,
    )
