"""Attention metadata of the built-in engine: page maps, masks, plans, and the upgrade from raw."""
