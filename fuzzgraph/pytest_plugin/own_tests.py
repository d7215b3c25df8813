"""The fixture for tests of one's own: a campaign on any target, in five lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fuzzgraph.ports import Target
    from fuzzgraph.run_spec import Profile

__all__ = ["fuzz_engine"]


@pytest.fixture
def fuzz_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Fuzz a target, by name or one of your own; a finding fails the test with its shrunk case.

    ::

        def test_my_engine(fuzz_engine):
            fuzz_engine(MyTarget(), examples=200)

    `--fuzz-time`, `--fuzz-examples` and `--fuzz-seed` take precedence under `pytest --fuzz`.
    """

    def run(
        target: str | Target = "builtin",
        *,
        examples: int = 100,
        seed: int = 0,
        profile: Profile = "ci",
        device: str = "cpu",
        graphs: str = "",
    ) -> None:
        __tracebackhide__ = True
        text = _campaign(request.config, tmp_path, target, examples, seed, profile, device, graphs)
        if text:
            pytest.fail(text, pytrace=False)

    return run


def _campaign(
    config: pytest.Config,
    folder: Path,
    target: Any,
    examples: int,
    seed: int,
    profile: Profile,
    device: str,
    graphs: str,
) -> str:
    """The text of what was found; '' for nothing."""
    from contextlib import closing

    from fuzzgraph.campaign import checked_setup, open_setup, run_campaign
    from fuzzgraph.open_target import open_target_object
    from fuzzgraph.policy import load_policy
    from fuzzgraph.ports import is_isolated
    from fuzzgraph.pytest_plugin.asked import ASKED
    from fuzzgraph.reporting import run_text
    from fuzzgraph.run_spec import Budget, RunSpec

    asked = config.stash.get(ASKED, None)
    budget = Budget(None, examples)
    if asked is not None and asked.fuzz:
        budget, seed = Budget(asked.seconds, asked.examples), asked.seed
    name = target if isinstance(target, str) else _importable_name(target)
    named = isinstance(target, str)
    apart = named or is_isolated(target) or device != "cpu"
    setup = checked_setup(name, device=device, graphs=graphs, isolation="" if apart else "off")
    opened = open_setup(setup) if named else open_target_object(target, setup)
    out = str(folder / "fuzzgraph")
    plan = RunSpec(setup=setup, seed=seed, budget=budget, out=out, profile=profile)
    plan.folder.mkdir(exist_ok=True)
    with closing(opened):
        summary = run_campaign(plan, lambda event: None, opened=opened, policy=load_policy())
    return run_text(summary) if summary.exit_code else ""


def _importable_name(target: object) -> str:
    """How the command line opens the same target: module:class."""
    return f"{type(target).__module__}:{type(target).__qualname__}"
