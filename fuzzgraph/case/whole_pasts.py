"""Of how many tokens the past of a row is a multiple."""

from __future__ import annotations

from fuzzgraph.case.engine_config import EngineConfig, Mode

__all__ = ["past_unit", "with_whole_past"]


def past_unit(config: EngineConfig, mode: Mode) -> int:
    """Tokens of which what a row has cached is a multiple.

    Servers take whole pages of a prefix and cut prompts behind whole pages (sglang
    schedule_policy.py, `_select_prefill_admission`). Where a key stands for a group of tokens,
    prompts count on it (qwen_sparse_attn_backend.py, `_qsa_build_write_plan`).
    """
    if config.image_encoder:
        return config.max_context_len + 1  # an image has none
    return config.page_size if mode == "prefill" and config.index_group > 1 else 1


def with_whole_past(config: EngineConfig, mode: Mode, seq_len: int, new_tokens: int) -> int:
    """The longest length up to `seq_len` at which a row may compute so many tokens."""
    return seq_len - (seq_len - new_tokens) % past_unit(config, mode)
