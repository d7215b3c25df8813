"""Layers of experts: how many, on which ranks, and what they may have at once."""

from __future__ import annotations

from fuzzgraph.case.config_rules.beside import also, set_among
from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.engine_config import EngineConfig


def check_experts(config: EngineConfig) -> None:
    """Experts are shared out evenly, over ranks that all compute the same tokens: those of one
    rank, or those that data-parallel ranks have gathered."""
    experts, ranks, each = config.num_experts, config.ep_size, config.experts_per_token
    if each > max(experts, 1):
        refuse(
            "config.experts_per_token",
            each,
            f"must be at most num_experts={experts}",
            "Lower it, or raise num_experts.",
        )
    if ranks > 1 and (not experts or experts % ranks):
        refuse(
            "config.ep_size",
            ranks,
            f"must share out num_experts={experts} evenly",
            "Change one of them.",
        )
    if ranks > 1 and config.attn_tp_size > 1:
        refuse(
            "config.ep_size",
            ranks,
            "counts ranks that compute the same tokens; those of attn_tp_size have their own",
            "Use 1 for one of them.",
        )
    data_ranks = config.dp_size, config.dp_rank
    if config.dp_size > 1 and experts and (ranks, config.ep_rank) != data_ranks:
        refuse(
            "config.ep_size",
            ranks,
            "must be dp_size, and ep_rank dp_rank, for data-parallel ranks share out the experts; "
            f"got ep_rank={config.ep_rank}, dp_size={config.dp_size}, dp_rank={config.dp_rank}",
            "Use the same for both, or dp_size=1.",
        )
    _check_quantised_experts(config)
    _check_expert_groups(config)
    _check_shared_expert(config)
    _check_expert_copies(config)
    if config.expert_exchange != "scatterv" and not (config.dp_size > 1 and experts):
        refuse(
            "config.expert_exchange",
            config.expert_exchange,
            "is of data-parallel ranks with experts; got "
            f"dp_size={config.dp_size} and num_experts={experts}",
            "Use 'scatterv', or several ranks with experts.",
        )


def _check_quantised_experts(config: EngineConfig) -> None:
    """Kernels of a server with FP8 or INT8 take half precision, and its experts have no biases; no
    target drives adapters of them.

    Source: sglang fp8.py, w8a8_fp8.py and w8a8_int8.py, `get_supported_act_dtypes` and
    `create_weights` of their experts.
    """
    others = set_among(config, ("max_loras", "expert_activation"))
    whole = config.dtype == "float32"
    if config.expert_quantisation != "none" and (not config.num_experts or whole or others):
        refuse(
            "config.expert_quantisation",
            config.expert_quantisation,
            "needs experts in half precision without biases or adapters; got "
            f"num_experts={config.num_experts}, dtype={config.dtype!r}" + also(config, others),
            "Change them, or use 'none'.",
        )


def _check_expert_groups(config: EngineConfig) -> None:
    """Groups are of routers with sigmoids; each has two experts or more, and half of them as many
    as a token has."""
    groups, experts = config.expert_groups, config.num_experts
    fits = not experts % groups and experts >= 2 * groups
    fits = fits and not groups % 2 and experts // 2 >= config.experts_per_token
    if groups > 1 and not (fits and config.expert_scoring == "sigmoid"):
        refuse(
            "config.expert_groups",
            groups,
            f"must be even and share out num_experts={experts} evenly, two or more for each, of "
            "which half must do for a token, chosen by sigmoids; got "
            f"experts_per_token={config.experts_per_token}, "
            f"expert_scoring={config.expert_scoring!r}",
            "Change one of them, or use 1.",
        )


def _check_expert_copies(config: EngineConfig) -> None:
    """Copies are shared out as the experts are. Beside data-parallel ranks a token's row is one of
    all of theirs, which no target drives."""
    copies, experts = config.expert_copies, config.num_experts
    others = set_among(config, ("max_loras", "expert_activation", "expert_quantisation"))
    uneven = copies > experts or copies % config.ep_size
    if copies and (uneven or config.dp_size > 1 or others):
        refuse(
            "config.expert_copies",
            copies,
            f"must be at most num_experts={experts}, a multiple of ep_size={config.ep_size}, of "
            "plain experts on one data-parallel rank; got "
            f"dp_size={config.dp_size}" + also(config, others),
            "Change one of them, or use 0.",
        )


def _check_shared_expert(config: EngineConfig) -> None:
    """A shared expert has weights as those of the others are without biases, adapters and
    quantisation; apart from them its 16 inner columns are shared out over their ranks. Fused with
    them it takes a place behind those that a router chooses, which leaves some out."""
    kind = config.shared_experts
    others = set_among(config, ("max_loras", "expert_activation", "expert_quantisation"))
    if kind != "none" and (not config.num_experts or others):
        refuse(
            "config.shared_experts",
            kind,
            "needs experts without biases, adapters or quantisation; got "
            f"num_experts={config.num_experts}" + also(config, others),
            "Change them, or use 'none'.",
        )
    if kind == "apart" and 16 % config.ep_size:
        refuse(
            "config.shared_experts",
            kind,
            f"has 16 inner columns, which ep_size={config.ep_size} ranks must share out evenly",
            "Change one of them, or use 'fused'.",
        )
    if kind == "fused" and config.experts_per_token == config.num_experts:
        refuse(
            "config.shared_experts",
            kind,
            "is of routers that leave some experts out; got "
            f"experts_per_token={config.experts_per_token} of num_experts={config.num_experts}",
            "Raise num_experts, or use 'apart'.",
        )
