"""Planted bugs of drafts and verifies at temperatures, each the change of one line of sglang."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.dflash_verify import BlockVerifyTarget
from fuzzgraph.targets.sglang.runners.dspark import DSparkDraftTarget
from fuzzgraph.targets.sglang.runners.dspark_verify import DSparkVerifyTarget
from tests.targets.sglang.changed_lines import (
    change_line,
    changed_function,
    replace_while_running,
)
from tests.targets.sglang.planted import with_changed_sessions

_DRAFT = "sglang.srt.speculative.dspark_components.dspark_draft"
_VERIFY = "sglang.srt.speculative.dspark_components.dspark_verify"
_BLOCKS = "sglang.srt.speculative.dflash_utils"
_WORKER = "sglang.srt.speculative.dflash_worker_v2"
_SAMPLER = "sglang.srt.speculative.dspark_components.dspark_draft_sampler"


def _other(target: Any, module: str, name: str, line: str, other: str, at: str = "") -> Any:
    """The target, while it runs with another line in a function.

    Args:
        at: the module that looks the function up, where that is not its own.
    """

    def change(session: Any) -> None:
        changed = changed_function(getattr(engine_module(module), name), line, other)
        replace_while_running(session, engine_module(at or module), name, lambda _: changed)

    return with_changed_sessions(target, change)


def _drafts() -> DSparkDraftTarget:
    return DSparkDraftTarget("sglang-dspark-draft-fa3", "fa3")


def _verifies() -> DSparkVerifyTarget:
    return DSparkVerifyTarget("sglang-dspark-verify-fa3", "fa3")


def _verifies_blocks() -> BlockVerifyTarget:
    return BlockVerifyTarget("sglang-dflash-verify-fa3", "fa3")


def temperatures_of_the_step_before() -> Any:
    """Graphs go on with the temperatures that were staged first."""

    def change(session: Any) -> None:
        proposer = session._worker.engine._proposer
        change_line(
            proposer, "_stage_sampling_params", "if skip:", "if self.num_staged_params_calls > 1:"
        )

    return with_changed_sessions(_drafts(), change)


def greedy_rows_are_drawn() -> Any:
    """Rows that take their best token alone are drawn at the temperature beside it."""
    line = "torch.where(greedy_mask, _zero(device), temperatures, out=step_temperatures)"
    other = "step_temperatures.copy_(temperatures)"
    return _other(_drafts(), _DRAFT, "resolve_draft_params", line, other, _SAMPLER)


def every_place_has_the_first_ones_noise() -> Any:
    """All drafts of a block are drawn by the noise of its first place."""
    target = _drafts()
    return _other(target, _DRAFT, "draft_markov_block", "step=step,", "step=0,", _SAMPLER)


def blocks_are_not_counted() -> Any:
    """Each block is drawn by the noise of the one before it."""
    line = "noise.offset.add_(1)"
    return _other(_drafts(), _DRAFT, "draft_markov_block", line, "pass", _SAMPLER)


def drafts_are_weighed_at_a_temperature_of_one() -> Any:
    """A verify takes drafts for drawn without a temperature."""
    line = "temperatures=draft_block.temperatures"
    other = "temperatures=torch.ones_like(draft_block.temperatures)"
    return _other(_verifies(), _VERIFY, "_draft_probs", line, other)


def drafts_are_weighed_as_sure_ones() -> Any:
    """A verify takes drafts that were drawn for the only ones that could be."""
    line = "if draft_block.greedy_draft:"
    return _other(_verifies(), _VERIFY, "_draft_probs", line, "if True:")


def tokens_of_greedy_rows_and_of_others_change_places() -> Any:
    """What was drawn is taken for greedy rows, and what was not for the others."""
    line = "greedy_mask=greedy_mask,"
    return _other(_verifies(), _VERIFY, "accept_draft_tokens", line, "greedy_mask=~greedy_mask,")


def temperatures_are_spread_over_other_rows() -> Any:
    """Each draft of a row has the temperature of another request."""
    line = "expanded_temperature = torch.repeat_interleave("
    other = "expanded_temperature = (lambda heat, times, dim: heat.repeat(times, 1))("
    return _other(_verifies_blocks(), _BLOCKS, "build_speculative_verify_target_probs", line, other)


def what_follows_is_drawn_by_a_drafts_number() -> Any:
    """The token behind those that stay is drawn by the number that decided on the first draft."""
    line = "uniform_samples_for_final_sampling=coins_for_final_sampling,"
    other = "uniform_samples_for_final_sampling=coins[:, 0].contiguous(),"
    name = "compute_dflash_sampling_correct_drafts_and_bonus"
    return _other(_verifies_blocks(), _BLOCKS, name, line, other, _WORKER)


def what_follows_is_taken_behind_the_first() -> Any:
    """The token behind a block's first stands for the one behind those that stay."""
    line = "accept_index[row_ids, correct_len.to(torch.long)]"
    other = "accept_index[row_ids, correct_len.to(torch.long) * 0]"
    name = "compute_dflash_sampling_correct_drafts_and_bonus"
    return _other(_verifies_blocks(), _BLOCKS, name, line, other, _WORKER)
