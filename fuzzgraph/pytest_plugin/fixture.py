"""The fixture for tests of one's own: a campaign on any target, in five lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fuzzgraph.ports import Target
    from fuzzgraph.run.spec import RunSpec


@pytest.fixture
def fuzz_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Fuzz a target, by name or one of your own; a finding fails the test with its shrunk case.

    ::

        def test_my_engine(fuzz_engine):
            fuzz_engine(MyTarget(), examples=200)

    Further keywords are the options of a run under the names of `RunSpec` and `Setup`, e.g.
    `profile="nightly"` or `strict_nan=True`. `--fuzz-time`, `--fuzz-examples` and `--fuzz-seed`
    take precedence under `pytest --fuzz`.
    """

    def run(
        target: str | Target = "builtin", *, examples: int = 100, seed: int = 0, **options: Any
    ) -> None:
        __tracebackhide__ = True
        given = {"examples": examples, "seed": seed, **options}
        text = _campaign(request.config, tmp_path / "fuzzgraph", target, given)
        if text:
            pytest.fail(text, pytrace=False)

    return run


def _campaign(config: pytest.Config, out: Path, target: Any, given: dict[str, Any]) -> str:
    """The text of what was found; '' for nothing."""
    from contextlib import closing

    from fuzzgraph.campaign import open_setup, run_campaign
    from fuzzgraph.open_target import open_target_object
    from fuzzgraph.policy import load_policy
    from fuzzgraph.reporting import run_text

    spec = _spec(config, out, target, given)
    named = isinstance(target, str)
    out.mkdir(exist_ok=True)
    opened = open_setup(spec.setup) if named else open_target_object(target, spec.setup)
    with closing(opened):
        summary = run_campaign(spec, lambda event: None, opened=opened, policy=load_policy())
    return run_text(summary) if summary.exit_code else ""


def _spec(config: pytest.Config, out: Path, target: Any, given: dict[str, Any]) -> RunSpec:
    """What the test asks, with what the command line says instead."""
    import msgspec

    from fuzzgraph.errors import UsageError
    from fuzzgraph.ports import is_isolated
    from fuzzgraph.pytest_plugin.options import OPTIONS_KEY
    from fuzzgraph.run.spec import OPTIONS
    from fuzzgraph.run_options import checked_spec

    names = [row.name for row in OPTIONS]
    for name in given:
        if name not in names:
            raise UsageError(f"{name}={given[name]!r} is unknown. Use one of: {', '.join(names)}.")
    apart = isinstance(target, str) or is_isolated(target) or given.get("device", "cpu") != "cpu"
    asked = {
        "target": target if isinstance(target, str) else _importable_name(target),
        "isolation": None if apart else "off",
        **given,
        "out": str(out),
    }
    spec = checked_spec(asked)
    options = config.stash.get(OPTIONS_KEY, None)
    if options is None or not options.fuzz:
        return spec
    return msgspec.structs.replace(spec, budget=options.spec.budget, seed=options.spec.seed)


def _importable_name(target: object) -> str:
    """How the command line opens the same target: module:class."""
    return f"{type(target).__module__}:{type(target).__qualname__}"
