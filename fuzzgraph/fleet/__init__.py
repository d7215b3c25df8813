"""Shards of one run on the machines of a Ray cluster."""
