"""What a target or session lacks of its protocol, found before a campaign trips over it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import TargetFailed
from fuzzgraph.ports import Session, Target, outputs_judged, unwrapped

GUIDE = "see docs/writing-a-target.md"


def lacks(part: object, protocol: type) -> list[str]:
    """What is wrong with an object that should follow a protocol, one clause each.

    Nothing of it is called: a property may need an engine that is running.
    """
    part = unwrapped(part)
    return [wrong for name in _members(protocol) if (wrong := _wrong(part, name, protocol))]


def require_session(session: Session) -> None:
    """Refuse a session that lacks something.

    Raises:
        TargetFailed: the message names all of it.
    """
    wrong = lacks(session, Session)
    if wrong:
        raise TargetFailed(f"{type(unwrapped(session)).__name__} {'; '.join(wrong)}; {GUIDE}.")


def require_outputs(target: Target, session: Session, config: EngineConfig) -> None:
    """Refuse a session that promises other outputs than its target says are judged.

    Raises:
        TargetFailed: the message names the mode.
    """
    said = outputs_judged(target)
    if said is None:
        return
    for mode in config.modes:
        promised = session.promised_outputs(mode)
        if promised and mode not in said:
            raise TargetFailed(
                f"{type(unwrapped(session)).__name__} promises outputs of {mode} "
                f"({', '.join(promised)}), and outputs_judged={dict(said)!r} of its target does "
                f"not name the mode. Add it; {GUIDE}."
            )
        if not promised and said.get(mode) == "":
            raise TargetFailed(
                f"{type(unwrapped(session)).__name__} promises no outputs of {mode}, which "
                f"outputs_judged={dict(said)!r} of its target names for all cases. Take it out, or "
                f"say for which cases; {GUIDE}."
            )


def _members(protocol: type) -> Iterator[str]:
    named = {**protocol.__dict__.get("__annotations__", {}), **vars(protocol)}
    return (name for name in named if not name.startswith("_"))


def _wrong(part: object, name: str, protocol: type) -> str:
    found = inspect.getattr_static(part, name, None)
    if found is None and getattr(type(part), "__getattr__", None):
        found = getattr(part, name, None)  # one that answers for another object
    if found is None:
        return f"lacks {name}"
    promised = vars(protocol).get(name)
    if not inspect.isfunction(promised) or not inspect.isfunction(found):
        return ""
    bound = name in getattr(part, "__dict__", {})  # a function of the object alone takes no self
    wanted = len(inspect.signature(promised).parameters) - bound
    try:
        inspect.signature(found).bind(*range(wanted))
    except TypeError:
        return f"takes other arguments than {name}{inspect.signature(promised)}"
    return ""
