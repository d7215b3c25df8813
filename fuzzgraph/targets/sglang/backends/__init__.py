"""Attention backends, each in a file named as `--attention-backend` names it."""
