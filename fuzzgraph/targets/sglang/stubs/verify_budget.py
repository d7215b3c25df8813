"""How sure a draft model is of its drafts, and the scheduler's budget of tokens to verify.

What stands in is the confidence head of a draft model and the scheduler's profile of steps. The
engine's own planner shares the budget out (sglang 0.5.23 dspark_schedule.py,
schedule_verify_lens_topk): a draft is worth verifying as far as all before it in its row are sure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.splitmix import Chance
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.world import PLACEHOLDER, Batch, IntArray

PLANNER = "sglang.srt.speculative.dspark_components.dspark_planner"
MODES = {
    "none": "static",
    "cap_accept": "cap-accept",
    "compact": "compact",
    "verify_all": "compact",
}
"""As `SGLANG_RAGGED_VERIFY_MODE` spells them; with a profile of steps but for `verify_all`."""
_SPS = "sglang.srt.speculative.dspark_components.dspark_sps"
_SURE, _UNSURE, _NEVER = 0.9, 0.01, 0.0
_SALT = 5


def verified_lens(batch: Batch) -> IntArray:
    """[raw_bs] tokens of each row that the budget pays for, its first among them."""
    return batch.most_kept if len(batch.most_kept) else batch.new_lens


def spare_tokens(batch: Batch, config: EngineConfig) -> int:
    """Tokens of the budget that no draft is sure enough for; 0 in half of the steps, where it is
    the budget that ends rows."""
    spare = batch.raw_bs * config.draft_tokens - int(verified_lens(batch).sum())
    chance = Chance(31 * batch.step + int(batch.seq_lens.sum()), _SALT)
    return chance.below(spare + 1) if chance.below(2) else 0


def token_budget(batch: Batch, config: EngineConfig) -> int | None:
    """Tokens of the batch to verify beyond the first of each row."""
    if config.verify_budget in ("none", "verify_all"):
        return None
    paid = int(verified_lens(batch).sum()) - batch.raw_bs
    return paid + spare_tokens(batch, config)


def rank_tokens(batch: Batch, config: EngineConfig) -> list[int]:
    """Tokens that the budget of each data-parallel rank comes to; -1 of one that has none yet, as
    behind a prompt: in a quarter of the steps that is another rank than this one."""
    chance = Chance(31 * batch.step + int(batch.rank_sizes.sum()), _SALT + 1)
    drafts = config.draft_tokens - 1
    found = [rows + chance.below(rows * drafts + 1) for rows in batch.rank_sizes.tolist()]
    found[config.dp_rank] = batch.raw_bs + (token_budget(batch, config) or 0)
    others = [rank for rank in range(config.dp_size) if rank != config.dp_rank]
    if others and chance.below(4) == 0:
        found[chance.pick(others)] = -1
    return found


def agreed_tokens(batch: Batch, config: EngineConfig) -> int:
    """Tokens that the graph of all data-parallel ranks must hold: those of the largest budget, or
    of whole blocks of the largest rank where a budget is missing."""
    budgets = rank_tokens(batch, config)
    if config.verify_budget == "compact" and min(budgets) >= 0:
        return max(budgets)
    return batch.largest_rank * config.draft_tokens


def confidences(batch: Batch, config: EngineConfig) -> torch.Tensor:
    """[raw_bs, draft_tokens - 1] how sure the draft model is of each draft."""
    paid = torch.from_numpy(verified_lens(batch))[:, None] - 1
    places = torch.arange(config.draft_tokens - 1)
    beyond = _NEVER if spare_tokens(batch, config) else _UNSURE
    return torch.where(places < paid, _SURE, beyond).float()


def all_drafts(batch: Batch, config: EngineConfig) -> IntArray:
    """[raw_bs, draft_tokens] tokens of whole blocks. The draft behind a row that is cut is what
    the target model says there: were it verified, it would stay."""
    found = np.full((batch.raw_bs, config.draft_tokens), PLACEHOLDER)
    ends = np.cumsum(batch.new_lens)
    for row, (end, count) in enumerate(zip(ends, batch.new_lens, strict=True)):
        found[row, :count] = batch.input_ids[end - count : end]
        found[row, count : count + 1] = batch.predicted[end - 1]
    return found


def profile_of_steps(_: str) -> Any:
    """In the place of the file that a server is told of: any profile of more than one step."""
    table = engine_module(_SPS).SpsCostTable
    return table(sample_batch_tokens=[1, 2], sample_steps_per_sec=[2.0, 1.0], max_batch_tokens=64)
