"""The strategy that a campaign draws from: flat, cheap, valid by construction.

A campaign shrinks cases, not bytes (`minimise`); tests with Hypothesis draw from `public`.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Case
from fuzzgraph.strategies.configs import Supports
from fuzzgraph.strategies.profile import DEFAULT, Profile
from fuzzgraph.strategies.space import Space


def cases(
    capabilities: Capabilities, profile: Profile = DEFAULT, *, supports: Supports | None = None
) -> SearchStrategy[Case]:
    """Valid cases in all dimensions that `capabilities` has; see `Space` for the arguments."""
    space = Space(can=capabilities, profile=profile, supports=supports)
    return st.binary(min_size=space.size, max_size=space.size).map(space.case)
