"""The command line that replays a case."""

from __future__ import annotations

import os
import shlex

from fuzzgraph.events import Setup

__all__ = ["replay_command"]


def replay_command(path: str, setup: Setup) -> str:
    """The command line that replays a case on the setup that showed the finding.

    It is for the current folder; a target of one's own that lies elsewhere is replayed there.
    """
    from fuzzgraph.targets.own import import_root

    words = ["fuzzgraph", "replay", path, "--target", setup.target]
    if setup.release:
        words += ["--release", setup.release]
    if setup.fault:
        words += ["--fault", setup.fault]
    if setup.device != "cpu":
        words += ["--device", setup.device]
    if setup.graphs == "recorder" and setup.device != "cpu":
        words += ["--graphs", setup.graphs]
    if setup.strict_nan:
        words.append("--strict-nan")
    if setup.second_opinion:
        words.append("--second-opinion")
    if setup.isolation:
        words += ["--isolation", setup.isolation]
    if setup.stock_kernels:
        words.append("--stock-kernels")
    root = import_root(setup.target)
    if not root or (root == os.getcwd() and not os.path.isabs(path)):
        return shlex.join(words)
    words[2] = os.path.abspath(path)
    return f"cd {shlex.quote(root)} && {shlex.join(words)}"
