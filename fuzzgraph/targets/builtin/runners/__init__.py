"""Runners: each captures the graphs of one forward mode and replays them."""
