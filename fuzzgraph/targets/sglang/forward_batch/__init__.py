"""Translates a logical batch into the engine's own `ForwardBatch`."""
