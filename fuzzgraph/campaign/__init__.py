"""Campaigns: corpus first, then generated cases, within a budget."""

from __future__ import annotations

from fuzzgraph.campaign.folder import RunFolder, fresh_folder
from fuzzgraph.campaign.loop import Campaign
from fuzzgraph.campaign.plan import Budget, Plan, parse_time
from fuzzgraph.campaign.pursuit import replay_command
from fuzzgraph.campaign.runner import Runner, VerdictLike

__all__ = [
    "Budget",
    "Campaign",
    "Plan",
    "RunFolder",
    "Runner",
    "VerdictLike",
    "fresh_folder",
    "parse_time",
    "replay_command",
]
