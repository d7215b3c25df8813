"""Files that run their case through an installed FuzzGraph: the pytest file, and the script where
operations alone cannot show the finding."""

from __future__ import annotations

import re

import msgspec

from fuzzgraph.case import Case, digest, encode_case
from fuzzgraph.events import Setup
from fuzzgraph.finding import Finding
from fuzzgraph.repro.naming import identifier
from fuzzgraph.repro.wording import docstring, headline, opening, plain
from fuzzgraph.targets.own import import_root

__all__ = ["install_lines", "pytest_file", "setup_words", "through_script"]


def setup_words(setup: Setup) -> list[str]:
    """The parts of a setup that differ from the defaults, as keyword arguments."""
    given = msgspec.to_builtins(setup)
    return [f"{name}={value!r}" for name, value in given.items()]


def install_lines(setup: Setup) -> list[str]:
    """What has to be installed, one line each."""
    lines = ["FuzzGraph: pip install fuzzgraph"]
    if setup.release:
        lines.append(f"{setup.target}, release {setup.release}: 'fuzzgraph targets' says how")
    elif ":" in setup.target:
        lines += _own_target(setup.target)
    elif setup.target != "builtin":
        lines.append(f"the engine behind target {setup.target!r}: see 'fuzzgraph targets'")
    return lines


def _own_target(name: str) -> list[str]:
    """Where Python has to find a target that is not installed."""
    module, root = name.partition(":")[0], import_root(name)
    way = f"the module {module!r}: run this in its folder, or name that in PYTHONPATH"
    return [way, f"    (it was found in {plain(root)})"] if root else [way]


def _chunks(text: str) -> list[str]:
    return [f"    {text[at : at + 88]!r}" for at in range(0, len(text), 88)]


def _constants(case: Case, finding: Finding, setup: Setup) -> list[str]:
    return [
        f"HEADLINE = {headline(finding)!r}",
        "NEEDS_FUZZGRAPH = True",
        f"SETUP = dict({', '.join(setup_words(setup))})",
        f"KEY = {finding.key!r}  # oracle, clause, target, buffer, mode",
        "CASE = (",
        *_chunks(encode_case(case).decode()),
        ")",
    ]


_FIND = '''
def found():
    """The finding on a fresh session, or None."""
    opened = open_setup(checked_setup(**SETUP))
    try:
        findings = opened.runner.run_case(decode_case(CASE)).findings
    finally:
        opened.close()
    return next((finding for finding in findings if finding.key == KEY), None)
'''

_MAIN = '''
def main():
    """Exit code: 1 and the finding, or 0 if it is gone."""
    finding = found()
    if finding is None:
        print("The finding does not show: the law holds here.")
        return 0
    print(HEADLINE)
    print(f"  {finding.message}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
'''


def _head(case: Case, finding: Finding, why: list[str]) -> str:
    return docstring([*opening(case, finding), *why])


_IMPORTS = [
    "from fuzzgraph.open_target import checked_setup, open_setup",
    "from fuzzgraph.case import decode_case",
]


def through_script(case: Case, finding: Finding, setup: Setup, reason: str) -> str:
    """A script that runs the case through FuzzGraph and says why it needs it."""
    why = [
        f"This script needs FuzzGraph, for {plain(reason)}. Needed:",
        *(f"    {line}" for line in install_lines(setup)),
        "Run it: python THIS_FILE; exit code 1 and the finding, or 0 if it is gone.",
    ]
    parts = [
        _head(case, finding, why),
        "\n".join(["import sys", "", *_IMPORTS, "", *_constants(case, finding, setup)]),
        _FIND.strip(),
        _MAIN.strip(),
    ]
    return "\n\n\n".join(parts).replace('"""\n\n\nimport', '"""\n\nimport') + "\n"


def test_name(case: Case, finding: Finding) -> str:
    """`test_<clause>_<buffer>_<digest>`."""
    words = [finding.clause, finding.buffer or finding.stage]
    name = identifier("_".join(words)).rstrip("_")
    return re.sub(r"_+", "_", f"test_{name}_{digest(case)[:12]}")


def pytest_file(case: Case, finding: Finding, setup: Setup) -> str:
    """A pytest file with one test, which fails with the finding."""
    why = ["Fails with the finding, passes once it is gone. Run it: pytest THIS_FILE. Needed:"]
    why += [f"    {line}" for line in install_lines(setup)]
    test = [
        f"def {test_name(case, finding)}():",
        "    finding = found()",
        '    assert finding is None, f"{HEADLINE}\\n  {finding.message}"',
    ]
    parts = [
        _head(case, finding, why),
        "\n".join([*_IMPORTS, "", *_constants(case, finding, setup)]),
        _FIND.strip(),
        "\n".join(test),
    ]
    return "\n\n\n".join(parts).replace('"""\n\n\nfrom', '"""\n\nfrom') + "\n"
