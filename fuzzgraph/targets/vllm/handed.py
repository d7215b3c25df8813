"""What a runner hands over: a batch to each metadata builder, inputs to the model."""

from __future__ import annotations

from typing import Any

from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.handed import BackendWatch
from fuzzgraph.targets.offline.session import GraphSession


def watch_handover(session: GraphSession, runner: Any, graphs: GraphEngine) -> BackendWatch:
    """Take down what the V1 runner's builders get and give, and what the model gets.

    Graphs hold the model, and read its inputs where they lay when they were captured.

    Returns:
        What takes down the inputs of the model.
    """
    watches = watch_builders(session, runner, graphs)
    to_model = session.watch(runner.model, graphs, whole=True)
    watches.append(to_model)
    run = runner._dummy_run

    def dummy_run(*args: Any, **kwargs: Any) -> Any:
        if session.capturing:  # each graph after a warm-up of its own
            for watch in watches:
                watch.begin()
        return run(*args, **kwargs)

    runner._dummy_run = dummy_run
    return to_model


def watch_builders(session: GraphSession, runner: Any, graphs: GraphEngine) -> list[BackendWatch]:
    """Take down what each metadata builder gets and gives."""
    builders = [
        builder
        for groups in runner.attn_groups
        for group in groups
        for builder in group.metadata_builders
    ]
    return [session.watch(builder, graphs) for builder in builders]
