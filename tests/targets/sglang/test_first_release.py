"""A target says in one line from which release on it drives what it is for."""

from __future__ import annotations

import pytest

from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets.sglang import release


@pytest.fixture
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(release, "release", lambda: request.param)
    return str(request.param)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10.post1", "0.4.99", "0.5"], indirect=True)
def test_an_older_release_is_refused(version: str) -> None:
    with pytest.raises(AdapterUnavailable) as refused:
        release.demand_release((0, 5, 11), "has no graphs", "sglang-one")
    assert str(refused.value) == (
        f"sglang {version} has no graphs as target 'sglang-one' drives them. "
        "Name a release from 0.5.11 on."
    )


@pytest.mark.parametrize(
    "version", ["0.5.11", "0.5.12.post1", "1.0.0", "0.6", "", "0.0.0.dev1+g0123abc"], indirect=True
)
def test_a_newer_release_and_sources_without_a_number_are_not(version: str) -> None:
    release.demand_release((0, 5, 11), "has no graphs", "sglang-one")
