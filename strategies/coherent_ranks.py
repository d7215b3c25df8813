"""What a config says of several ranks, brought into agreement with the rest of it."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS, SPEC_MODES
from fuzzgraph.case.config_rules import WHOLE_BATCHES, set_among
from fuzzgraph.strategies.config_features import Fields, Pins
from fuzzgraph.strategies.draws import Draws


def later_stage(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """A later stage of a pipeline in one of seven configs, for a target that has them.

    None is drawn beside layers with memory of another kind.
    """
    kinds = ("swa_window", "virtual_pages", "max_encoder_len", "recurrent_state")
    apart = any(fields[name] for name in kinds) or set(fields["modes"]) & set(SPEC_MODES)
    if not can.later_stages or apart:
        fields["later_stage"] = DIMENSIONS["later_stage"].default
    else:
        fields["later_stage"] = fields["later_stage"] or draws.percent("later_stage", 14)


_DATA_RANKS = (1, 8, 2, 1, 2, 1, 1, 1, 1, 4)


def data_ranks(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Several data-parallel ranks in four of ten configs, for a target that has them, or in all if
    it always has."""
    modes = fields["modes"]
    mixed = "prefill" in modes and (len(modes) > 1 or fields["row_mixing"] != "none")
    if mixed or can.max_dp_size == 1:
        fields.update(dp_size=1, dp_rank=0)
    elif fields["dp_size"] == 1:
        sizes = [size for size in _DATA_RANKS if size > 1 or not can.data_ranks_only]
        ranks = fields["dp_size"] = min(draws.pick("dp_size", sizes), can.max_dp_size)
        fields["dp_rank"] = draws.below("dp_rank", ranks)


def even_ranks(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Ranks of equal length in half of the decodes beside other data-parallel ranks, in half
    precision: an idle one computes a prompt then."""
    beside = fields["dp_size"] > 1 and fields["modes"] == ("decode",)
    half = [dtype for dtype in can.dtypes if dtype != "float32"]
    if not (can.even_ranks and beside and half):
        fields["even_ranks"] = DIMENSIONS["even_ranks"].default
    elif fields["even_ranks"] or draws.percent("even_ranks", 50):
        fields["even_ranks"] = True
        if fields["dtype"] == "float32":
            fields["dtype"] = half[0]


def all_reduce(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """A custom all-reduce in two thirds of the decodes beside other data-parallel ranks, as servers
    of one node have it: one that takes every graph's tokens, or those of small graphs."""
    beside = fields["dp_size"] > 1 and fields["modes"] == ("decode",)
    if not (can.custom_all_reduce and beside):
        fields["all_reduce_kib"] = DIMENSIONS["all_reduce_kib"].default
    elif draws.percent("all_reduce_kib", 66):
        fields["all_reduce_kib"] = draws.pick("all_reduce_kib", (1, 1 << 14))


def ranks_that_share_drafts(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Several attention ranks in half of the verifies beside other data-parallel ranks, where these
    can share the largest graph, and drafts of a row that they cannot share: what runs without a
    graph is padded to tokens that they can."""
    verifies = "target_verify" in fields["modes"] and fields["drafted_blocks"] == "none"
    if fields["dp_size"] == 1 or not verifies or fields["attn_tp_size"] > 1:
        return
    largest, pool = fields["capture_bs"][-1], fields["req_pool_size"]
    shared = [size for size in (4, 2) if not largest % size and largest <= -(-pool // size) * size]
    within = [size for size in shared if size <= can.max_tp_size]
    if within and draws.percent("attn_tp_size", 50):
        ranks = fields["attn_tp_size"] = draws.pick("attn_tp_size", within)
        fields["attn_tp_rank"] = draws.below("attn_tp_rank", ranks)
        drafts, most = fields["draft_tokens"], fields["max_context_len"] - 1
        if drafts % ranks == 0 and drafts < min(can.max_draft_tokens, most):
            fields["draft_tokens"] += 1


def two_batches(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Batches cut in two in a third of the configs with several data-parallel ranks, for a target
    that cuts them. A server captures even sizes then, which ranks share as without it."""
    apart = set_among(fields, WHOLE_BATCHES)
    cut = {"decode", "target_verify"} & set(fields["modes"])
    if not can.two_batch_overlap or fields["dp_size"] == 1 or apart or not cut:
        fields["two_batch_overlap"] = DIMENSIONS["two_batch_overlap"].default
        return
    drawn = fields["two_batch_overlap"] or draws.percent("two_batch_overlap", 33)
    fields["two_batch_overlap"] = drawn
    if fields["two_batch_overlap"]:
        share = 2 * fields["attn_tp_size"]
        most = -(-fields["req_pool_size"] // share) * share
        even = {-(-size // share) * share for size in fields["capture_bs"]}
        fields["capture_bs"] = tuple(sorted({min(size, most) for size in even}))


def experts(fields: Fields, can: Capabilities, pins: Pins, draws: Draws) -> None:
    """Experts for a target that always has them, on several ranks in half of the configs."""
    pinned = dict(pins)
    if "num_experts" not in pinned:
        fields["num_experts"] = draws.pick("num_experts", (8, 4, 8, 64, 4))
    if "experts_per_token" not in pinned:
        drawn = min(1 + draws.below("experts_per_token", 3), can.max_experts_per_token)
        fields["experts_per_token"] = min(drawn, fields["num_experts"])
    alone = fields["attn_tp_size"] == 1  # ranks of attention have tokens of their own
    if fields["dp_size"] > 1 and alone and not _bounded_otherwise(fields, pinned):
        _experts_of_data_ranks(fields, can, pinned, draws)
    else:
        fields.update(dp_size=1, dp_rank=0)
        fields["expert_exchange"] = DIMENSIONS["expert_exchange"].default
        if "ep_size" not in pinned and alone and draws.percent("ep_size", 50):
            ranks = min(draws.pick("ep_size", (2, 4)), can.max_ep_size)
            if fields["num_experts"] % ranks == 0:
                fields.update(ep_size=ranks, ep_rank=draws.below("ep_rank", ranks))
    if "expert_quantisation" not in pinned:
        fields["expert_quantisation"] = _quantisation(fields, can, draws)
    if "expert_groups" not in pinned:
        fields["expert_groups"] = _groups(fields, can, draws)
    if "expert_copies" not in pinned:
        fields["expert_copies"] = _copies(fields, can, draws)
    if "shared_experts" not in pinned:
        fields["shared_experts"] = _shared_expert(fields, can, draws)


def _quantisation(fields: Fields, can: Capabilities, draws: Draws) -> object:
    """Weights in the model's dtype in half of the configs of a target that may have others, and
    in those where a server has no others."""
    plain, *others = can.expert_quantisations
    apart = fields["dtype"] == "float32" or fields["expert_activation"] != "silu"
    if apart or not others or not draws.percent("expert_quantisation", 50):
        return plain
    return draws.pick("expert_quantisation_kind", others)


def _groups(fields: Fields, can: Capabilities, draws: Draws) -> int:
    """One group, two or four, each as often among those that a token's experts fit into."""
    experts, most = fields["num_experts"], can.max_expert_groups
    may = fields["expert_scoring"] == "sigmoid" and experts // 2 >= fields["experts_per_token"]
    several = [each for each in (2, 4) if may and each <= most]
    fit = [each for each in several if not experts % each and experts >= 2 * each]
    return draws.pick("expert_groups", (1, *fit))


def _copies(fields: Fields, can: Capabilities, draws: Draws) -> int:
    """Copies in a third of the configs with one data-parallel rank, one or two for each rank of
    experts."""
    others = set_among(fields, ("expert_activation", "expert_quantisation"))
    apart = fields["dp_size"] > 1 or others or not can.expert_copies
    if apart or not draws.percent("expert_copies", 33):
        return 0
    copies = fields["ep_size"] * draws.pick("expert_copies_each", (1, 2))
    return int(copies if copies <= fields["num_experts"] else 0)


def _shared_expert(fields: Fields, can: Capabilities, draws: Draws) -> object:
    """Each way of a target to have a shared expert as often as another, where a model has it so."""
    plain, *others = can.shared_experts
    if set_among(fields, ("expert_activation", "expert_quantisation")):
        return plain
    lacks = {
        "apart": 16 % fields["ep_size"] > 0,  # inner columns, which ranks share out
        "fused": fields["experts_per_token"] == fields["num_experts"],
    }
    kinds = [kind for kind in others if not lacks[kind]]
    return draws.pick("shared_experts", [*kinds, plain]) if kinds else plain


def _bounded_otherwise(fields: Fields, pinned: Mapping[str, object]) -> bool:
    """Whether a test has bounded the experts so that data-parallel ranks cannot share them out."""
    uneven = "num_experts" in pinned and fields["num_experts"] % fields["dp_size"]
    return "dp_size" not in pinned and bool("ep_size" in pinned or uneven)


def _experts_of_data_ranks(
    fields: Fields, can: Capabilities, pinned: Mapping[str, object], draws: Draws
) -> None:
    """Data-parallel ranks share out the experts, if there are as many; each way of exchanging
    tokens comes as often as another."""
    ranks = fields["dp_size"]
    fields["num_experts"] = -(-fields["num_experts"] // ranks) * ranks
    fields.update(ep_size=ranks, ep_rank=fields["dp_rank"])
    if "expert_exchange" not in pinned:
        fields["expert_exchange"] = draws.pick("expert_exchange", can.expert_exchanges)
