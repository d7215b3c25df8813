"""The page that people share: one file, no network, light and dark, narrow and in print."""

from __future__ import annotations

from fuzzgraph.reporting.html.page import Material, html

__all__ = ["Material", "html"]
