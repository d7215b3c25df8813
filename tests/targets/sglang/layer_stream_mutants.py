"""DeepSeek V4's layer on its streams, with one line of the engine changed.

Opened by name. The lines are those of sglang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzzgraph.targets.sglang.backends.dsv4 import Dsv4Target
from tests.targets.sglang.planted import with_a_line_changed

_INDEXER = "sglang.srt.layers.attention.dsv4.indexer:C4IndexerBackendMixin"
_LAYER = "sglang.srt.models.deepseek_v4:MQALayer"


def _changed(holder: str, line: str, other: str) -> Callable[[], Dsv4Target]:
    name = "_forward_prepare_multi_stream"
    return with_a_line_changed(lambda: Dsv4Target("sglang-dsv4"), holder, name, line, other)


def _without(holder: str, line: str) -> Callable[[], Dsv4Target]:
    return _changed(holder, line, "pass")


keys_behind_attention = _without(_LAYER, "current_stream.wait_stream(stream_kv)")
"""Line 1948: attention does not wait for the keys of the window."""

keys_beside_the_graph = _without(_LAYER, "stream_kv.wait_stream(current_stream)")
"""Line 1908: their stream waits for nothing of the capture."""

compressed_behind_attention = _without(_LAYER, "current_stream.wait_stream(stream_compressor)")
"""Line 1949: attention does not wait for compressed keys."""

selected_behind_attention = _without(_LAYER, "current_stream.wait_stream(stream_indexer)")
"""Line 1950: attention does not wait for what the indexer selects."""

weights_behind_queries = _changed(
    _INDEXER, "stream_q.wait_event(weights_ready)", "current_stream.wait_event(weights_ready)"
)
"""Line 570: scores wait for the weights of queries, and the queries do not."""

queries_behind_scores = _without(_INDEXER, "current_stream.wait_stream(stream_q)")
"""Line 573: scores do not wait for the indexer's queries."""
