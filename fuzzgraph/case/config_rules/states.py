"""Recurrent states: where they are kept, and which modes have them."""

from __future__ import annotations

from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.engine_config import EngineConfig
from fuzzgraph.case.verified_states import verifies_states


def check_tracking(config: EngineConfig) -> None:
    """States are kept for a prefix cache behind whole pages, by modes that have states or are
    told of them."""
    interval, modes = config.state_track_interval, config.modes
    tracks = config.recurrent_state and modes in (("decode",), ("prefill",), ("target_verify",))
    # A draft model has no states where the model that it drafts for has some.
    if interval and not tracks and modes != ("draft_extend",):
        refuse(
            "config.state_track_interval",
            interval,
            "needs recurrent_state and modes=['decode'], ['prefill'] or ['target_verify'], or "
            f"modes=['draft_extend']; got {config.recurrent_state} and {list(modes)}",
            "Change them, or use 0 to keep no states.",
        )
    if interval and "target_verify" in modes and config.spec_topk > 1:
        refuse(
            "config.state_track_interval",
            interval,
            f"is not said of trees of drafts; got spec_topk={config.spec_topk}",
            "Use spec_topk=1, or 0 to keep no states.",
        )
    if config.prefix_branches and not (interval and modes == ("prefill",)):
        refuse(
            "config.prefix_branches",
            True,
            f"needs state_track_interval and modes=['prefill']; got {interval} and {list(modes)}",
            "Change them, or leave it out.",
        )
    if interval % config.page_size:
        refuse(
            "config.state_track_interval",
            interval,
            f"must be whole pages of {config.page_size} tokens",
            "Change one of them, or use 0 to keep no states.",
        )


def check_states(config: EngineConfig) -> None:
    """Decodes alone run short of states."""
    if config.state_pool_size and (not config.recurrent_state or config.modes != ("decode",)):
        refuse(
            "config.state_pool_size",
            config.state_pool_size,
            f"needs recurrent_state and modes=['decode']; got recurrent_state="
            f"{config.recurrent_state} and {list(config.modes)}",
            "Use 0 for as many states as rows.",
        )


def check_rings(config: EngineConfig) -> None:
    """Source: sglang attention_hook.py, guards of `enable_linear_replayssm` and, where drafts are
    verified, of `enable_linear_replayssm_spec`; memory_pool.py, how long rings of verifies are."""
    ring, modes = config.state_ring_len, config.modes
    decodes = modes == ("decode",) and not config.state_track_interval
    verifies = modes == ("target_verify",) and config.spec_topk == 1
    if ring and not (config.recurrent_state and (decodes or verifies)):
        refuse(
            "config.state_ring_len",
            ring,
            "needs recurrent_state, and modes=['decode'] with state_track_interval=0 or "
            f"modes=['target_verify'] with spec_topk=1; got {config.recurrent_state}, "
            f"{list(modes)}, {config.state_track_interval} and {config.spec_topk}",
            "Change them, or use 0 to write every state.",
        )
    if ring and verifies and (ring & (ring - 1) or ring < 2 * config.draft_tokens):
        refuse(
            "config.state_ring_len",
            ring,
            f"must be a power of 2, and room for two verifies of {config.draft_tokens} tokens",
            "Change it, or use 0 to write every state.",
        )
    if config.state_flush_interval and not (ring and decodes):
        refuse(
            "config.state_flush_interval",
            config.state_flush_interval,
            "needs state_ring_len and modes=['decode']",
            "Change them, or use 0.",
        )


def check_safe_gate(config: EngineConfig) -> None:
    """Decodes with a bound leave rings alone and write each state. Source: sglang kda_backend.py
    `forward_decode` and kda_triton.py `packed_decode`, which in 0.5.17 raises where it finds both.
    """
    decodes_by_ring = config.state_ring_len and config.modes == ("decode",)
    if config.safe_gate and (decodes_by_ring or not config.recurrent_state):
        refuse(
            "config.safe_gate",
            True,
            "needs recurrent_state, and no ring of states in decodes; got recurrent_state="
            f"{config.recurrent_state} and state_ring_len={config.state_ring_len}",
            "Change them, or drop it.",
        )


def check_linear_heads(config: EngineConfig) -> None:
    """Recurrent layers alone have such heads."""
    if config.linear_head_dim and not config.recurrent_state:
        refuse(
            "config.linear_head_dim",
            config.linear_head_dim,
            "needs recurrent_state",
            "Set it, or use 0.",
        )


def check_drafted_prompts(config: EngineConfig) -> None:
    """Chains of drafts alone stand behind prompts."""
    checks = verifies_states(config) and config.modes == ("target_verify",)
    if config.drafted_prompts and not (checks and config.spec_topk == 1):
        refuse(
            "config.drafted_prompts",
            True,
            f"needs recurrent_state, modes=['target_verify'] and spec_topk=1; got recurrent_state="
            f"{config.recurrent_state}, {list(config.modes)} and {config.spec_topk}",
            "Change them, or drop it.",
        )


def check_state_modes(config: EngineConfig) -> None:
    """Decodes have states, and so have prompts and verifies."""
    one = config.modes in (("decode",), ("prefill",), ("target_verify",))
    if config.recurrent_state and not one:
        refuse(
            "config.recurrent_state",
            True,
            f"needs modes=['decode'], ['prefill'] or ['target_verify']; got {list(config.modes)}",
            "Drop one of them.",
        )
