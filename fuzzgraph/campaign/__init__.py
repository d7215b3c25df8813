"""Campaigns: corpus first, then generated cases, within a budget."""

from __future__ import annotations

from fuzzgraph.campaign.bisecting import Bisection, ReleaseVerdict, bisect, walked
from fuzzgraph.campaign.folder import RunFolder, fresh_folder
from fuzzgraph.campaign.hunting import hunt, join_shards, load_corpus
from fuzzgraph.campaign.loop import Campaign
from fuzzgraph.campaign.opening import Opened, checked_setup, open_setup, strategy_of
from fuzzgraph.campaign.pursuit import replay_command
from fuzzgraph.campaign.runner import Runner, VerdictLike
from fuzzgraph.campaign.sought import seek
from fuzzgraph.campaign.survey import Trial, released_targets, survey, table

__all__ = [
    "Bisection",
    "Campaign",
    "Opened",
    "RunFolder",
    "Trial",
    "ReleaseVerdict",
    "Runner",
    "VerdictLike",
    "bisect",
    "checked_setup",
    "fresh_folder",
    "hunt",
    "join_shards",
    "load_corpus",
    "open_setup",
    "released_targets",
    "replay_command",
    "seek",
    "survey",
    "table",
    "walked",
    "strategy_of",
]
