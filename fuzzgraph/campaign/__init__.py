"""Campaigns: corpus first, then generated cases, within a budget."""

from __future__ import annotations

from fuzzgraph.campaign.folder import RunFolder, fresh_folder
from fuzzgraph.campaign.opening import Opened, open_setup, strategy_of
from fuzzgraph.campaign.run import join_shards, load_corpus, run_campaign
from fuzzgraph.campaign.search import Campaign
from fuzzgraph.campaign.targeted import run_until_found

__all__ = [
    "Campaign",
    "Opened",
    "RunFolder",
    "fresh_folder",
    "run_campaign",
    "join_shards",
    "load_corpus",
    "open_setup",
    "run_until_found",
    "strategy_of",
]
