"""What a config says of several ranks, brought into agreement with the rest of it."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS, SPEC_MODES
from fuzzgraph.case.config_rules import WHOLE_BATCHES
from fuzzgraph.strategies.config_features import Fields, Pins


def later_stage(fields: Fields, can: Capabilities) -> None:
    """A later stage of a pipeline in one of seven contexts, for a target that has them.

    None is drawn beside layers with memory of another kind.
    """
    kinds = ("swa_window", "virtual_pages", "max_encoder_len", "recurrent_state")
    apart = any(fields[name] for name in kinds) or set(fields["modes"]) & set(SPEC_MODES)
    if not can.later_stages or apart:
        fields["later_stage"] = DIMENSIONS["later_stage"].default
    else:  # by sizes that every case draws
        drawn = (fields["max_context_len"] + fields["req_pool_size"]) % 7 == 0
        fields["later_stage"] = fields["later_stage"] or drawn


def data_ranks(fields: Fields, can: Capabilities) -> None:
    """Several data-parallel ranks in four of ten contexts, for a target that has them."""
    context, modes = fields["max_context_len"], fields["modes"]
    mixed = "prefill" in modes and (len(modes) > 1 or fields["row_mixing"] != "none")
    if mixed or can.max_dp_size == 1:
        fields.update(dp_size=1, dp_rank=0)
    elif fields["dp_size"] == 1:
        # By a size that every case draws, so that each of them comes as often.
        fields["dp_size"] = min((8, 1, 2, 1, 2, 1, 1, 1, 1, 4)[context % 10], can.max_dp_size)
        fields["dp_rank"] = context // 10 % fields["dp_size"]


def even_ranks(fields: Fields, can: Capabilities) -> None:
    """Ranks of equal length in half of the decodes beside other data-parallel ranks, in half
    precision: an idle one computes a prompt then."""
    beside = fields["dp_size"] > 1 and fields["modes"] == ("decode",)
    half = [dtype for dtype in can.dtypes if dtype != "float32"]
    # By sizes that every case draws, so that each comes as often.
    drawn = fields["req_pool_size"] + fields["max_context_len"] // 10 + len(fields["capture_bs"])
    if not (can.even_ranks and beside and half):
        fields["even_ranks"] = DIMENSIONS["even_ranks"].default
    elif fields["even_ranks"] or drawn % 2:
        fields["even_ranks"] = True
        if fields["dtype"] == "float32":
            fields["dtype"] = half[0]


def ranks_that_share_drafts(fields: Fields, can: Capabilities) -> None:
    """Several attention ranks in half of the verifies beside other data-parallel ranks, where these
    can share the largest graph, and drafts of a row that they cannot share: what runs without a
    graph is padded to tokens that they can."""
    verifies = "target_verify" in fields["modes"] and fields["drafted_blocks"] == "none"
    if fields["dp_size"] == 1 or not verifies or fields["attn_tp_size"] > 1:
        return
    largest, pool = fields["capture_bs"][-1], fields["req_pool_size"]
    shared = [size for size in (4, 2) if not largest % size and largest <= -(-pool // size) * size]
    within = [size for size in shared if size <= can.max_tp_size]
    # By sizes that every case draws, so that each comes as often.
    context, drafts = fields["max_context_len"], fields["draft_tokens"]
    number = context + pool + drafts
    if within and number % 2:
        ranks = fields["attn_tp_size"] = within[number // 2 % len(within)]
        fields["attn_tp_rank"] = number % ranks
        if drafts % ranks == 0 and drafts < min(can.max_draft_tokens, context - 1):
            fields["draft_tokens"] += 1


def two_batches(fields: Fields, can: Capabilities) -> None:
    """Batches cut in two in a third of the contexts with several data-parallel ranks, for a target
    that cuts them. A server captures even sizes then, which ranks share as without it."""
    apart = any(fields[name] != DIMENSIONS[name].default for name in WHOLE_BATCHES)
    cut = {"decode", "target_verify"} & set(fields["modes"])
    if not can.two_batch_overlap or fields["dp_size"] == 1 or apart or not cut:
        fields["two_batch_overlap"] = DIMENSIONS["two_batch_overlap"].default
        return
    # By sizes that every case draws, so that each comes as often.
    drawn = (fields["max_context_len"] // 2 + fields["req_pool_size"]) % 3 == 0
    fields["two_batch_overlap"] = fields["two_batch_overlap"] or drawn
    if fields["two_batch_overlap"]:
        share = 2 * fields["attn_tp_size"]
        most = -(-fields["req_pool_size"] // share) * share
        even = {-(-size // share) * share for size in fields["capture_bs"]}
        fields["capture_bs"] = tuple(sorted({min(size, most) for size in even}))


def experts(fields: Fields, can: Capabilities, pins: Pins) -> None:
    """Experts for a target that always has them, on several ranks in half of the contexts."""
    # By sizes that every case draws, so that each number comes as often.
    context, largest, pinned = fields["max_context_len"], fields["capture_bs"][-1], dict(pins)
    if "num_experts" not in pinned:
        fields["num_experts"] = (8, 4, 8, 64, 4)[(context + largest) % 5]
    if "experts_per_token" not in pinned:
        drawn = min(1 + (context // 2 + largest) % 3, can.max_experts_per_token)
        fields["experts_per_token"] = min(drawn, fields["num_experts"])
    alone = fields["attn_tp_size"] == 1  # ranks of attention have tokens of their own
    if fields["dp_size"] > 1 and alone and not _bounded_otherwise(fields, pinned):
        _experts_of_data_ranks(fields, can, pinned)
        return
    fields.update(dp_size=1, dp_rank=0)
    fields["expert_exchange"] = DIMENSIONS["expert_exchange"].default
    if "ep_size" not in pinned and alone and context % 2:
        ranks = min((2, 4)[context // 2 % 2], can.max_ep_size)
        if fields["num_experts"] % ranks == 0:
            fields.update(ep_size=ranks, ep_rank=(context // 4 + largest) % ranks)


def _bounded_otherwise(fields: Fields, pinned: Mapping[str, object]) -> bool:
    """Whether a test has bounded the experts so that data-parallel ranks cannot share them out."""
    uneven = "num_experts" in pinned and fields["num_experts"] % fields["dp_size"]
    return "dp_size" not in pinned and bool("ep_size" in pinned or uneven)


def _experts_of_data_ranks(fields: Fields, can: Capabilities, pinned: Mapping[str, object]) -> None:
    """Data-parallel ranks share out the experts, if there are as many; each way of exchanging
    tokens comes as often as another."""
    ranks = fields["dp_size"]
    fields["num_experts"] = -(-fields["num_experts"] // ranks) * ranks
    fields.update(ep_size=ranks, ep_rank=fields["dp_rank"])
    if "expert_exchange" not in pinned:
        drawn = fields["max_context_len"] // 10 + fields["req_pool_size"]
        fields["expert_exchange"] = can.expert_exchanges[drawn % len(can.expert_exchanges)]
