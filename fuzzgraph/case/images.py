"""Which tokens of a request come as embeddings of an image."""

from __future__ import annotations

from fuzzgraph.case.engine_config import EngineConfig


def image_tokens(config: EngineConfig, request: int) -> int:
    """Tokens of the image with which a request's prompt begins; every other request has none.

    >>> image_tokens(EngineConfig(image_len=3), 0), image_tokens(EngineConfig(image_len=3), 1)
    (3, 0)
    """
    return 0 if request % 2 else config.image_len
