"""Campaigns: corpus first, then generated cases, within a budget."""

from __future__ import annotations

from fuzzgraph.campaign.folder import RunFolder, fresh_folder
from fuzzgraph.campaign.run import Campaign, Tools, join_shards, load_corpus, run_campaign
from fuzzgraph.campaign.search import SavedCases
from fuzzgraph.campaign.shrink import smallest
from fuzzgraph.campaign.targeted import run_until_found
from fuzzgraph.open_target import Opened, open_setup, strategy_of

__all__ = [
    "Campaign",
    "Opened",
    "RunFolder",
    "SavedCases",
    "Tools",
    "fresh_folder",
    "run_campaign",
    "join_shards",
    "load_corpus",
    "open_setup",
    "run_until_found",
    "smallest",
    "strategy_of",
]
