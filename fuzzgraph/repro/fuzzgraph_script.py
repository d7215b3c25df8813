"""Files that run their case through FuzzGraph: the pytest file, and the script of a finding that
recorded operations alone cannot show."""

from __future__ import annotations

import re

import msgspec

import fuzzgraph
from fuzzgraph.case import Case, digest, encode_case
from fuzzgraph.finding import Finding
from fuzzgraph.repro.naming import identifier
from fuzzgraph.repro.wording import CANNOT_RUN, device_check, docstring, opening, plain
from fuzzgraph.rules import handover
from fuzzgraph.run.events import Setup
from fuzzgraph.targets.own import import_root
from fuzzgraph.text.finding_text import headline

_NAMED = {"source": "FUZZGRAPH_SOURCE", "tree": "FUZZGRAPH_TREE"}
"""Parts of a setup that are another on the receiver's machine, and what names them there."""


def setup_words(setup: Setup) -> list[str]:
    """The parts of a setup that differ from the defaults, as keyword arguments."""
    given = msgspec.to_builtins(setup)
    return [f"{name}={value!r}" for name, value in given.items()]


def _setup_code(setup: Setup) -> str:
    """The same as code of a file: a tree is found where its receiver says."""
    words = {name: repr(value) for name, value in msgspec.to_builtins(setup).items()}
    for name, variable in _NAMED.items():
        if name in words:
            words[name] = f"os.environ.get({variable!r}, {words[name]})"
    items = [f"{name}={code}" for name, code in words.items()]
    if not setup.source:
        return f"SETUP = dict({', '.join(items)})"
    return "\n".join(["SETUP = dict(", *(f"    {item}," for item in items), ")"])


def _imports(setup: Setup, *names: str) -> list[str]:
    own = ("os", *names) if setup.source else names
    head = [f"import {name}" for name in own]
    return [*head, *([""] if head else []), "import fuzzgraph", ""]


def install_lines(setup: Setup) -> list[str]:
    """What has to be there, one line each."""
    lines = [f"FuzzGraph {fuzzgraph.__version__}: pip install . in a clone of it"]
    if setup.source:
        lines += [
            f"{setup.target}, {setup.engine}: name a checkout of it in FUZZGRAPH_SOURCE",
            "    (another tree is refused; FUZZGRAPH_TREE=any takes it as it is)",
        ]
    elif setup.release:
        lines.append(f"{setup.target}, {setup.engine}: 'fuzzgraph targets' says how")
    elif ":" in setup.target:
        lines += _own_target(setup.target)
    elif setup.target != "builtin":
        lines.append(f"the engine behind target {setup.target!r}: see 'fuzzgraph targets'")
    if setup.device != "cpu":
        lines.append("a CUDA or HIP device, and a torch for it")
    if setup.sanitizer:
        lines.append("compute-sanitizer, of the CUDA toolkit")
    return lines


def _shown_on(setup: Setup, finding: Finding) -> Setup:
    """What the finding needs of the setup: what an oracle sees needs no other tool."""
    if finding.symptom == "kernel_error":
        return setup
    return msgspec.structs.replace(setup, sanitizer="")


def _own_target(name: str) -> list[str]:
    """Where Python has to find a target that is not installed."""
    module, root = name.partition(":")[0], import_root(name)
    way = f"the module {module!r}: run this in its folder, or name that in PYTHONPATH"
    return [way, f"    (it was found in {plain(root)})"] if root else [way]


def _chunks(text: str) -> list[str]:
    return [f"    {text[at : at + 88]!r}" for at in range(0, len(text), 88)]


def _constants(headline: str, case: Case, setup: Setup) -> list[str]:
    return [
        headline,
        "NEEDS_FUZZGRAPH = True",
        _setup_code(setup),
        "CASE = (",
        *_chunks(encode_case(case).decode()),
        ")",
    ]


_MAIN = f'''
def main():
    """Run the case. Exit code 1: the finding shows. 0: it does not. {CANNOT_RUN}: it cannot run."""
    try:
        findings = fuzzgraph.run_case(fuzzgraph.decode_case(CASE), **SETUP).findings
    except fuzzgraph.FuzzGraphError as error:
        print(f"This cannot run here: {{error}}", file=sys.stderr)
        return {CANNOT_RUN}
    for finding in findings:
        if finding.key == KEY:
            print(HEADLINE)
            print(f"  {{finding.message}}")
            return 1
    print("Not reproduced.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''


def _file(case: Case, finding: Finding, why: list[str], imports: list[str], *parts: str) -> str:
    head = f"{docstring([*opening(case, finding), *why])}\n\n" + "\n".join(imports)
    return "\n\n\n".join([head, *(part.strip() for part in parts)]) + "\n"


def fuzzgraph_script(case: Case, finding: Finding, setup: Setup, reason: str) -> str:
    """A script that runs the case through FuzzGraph and says why it needs it."""
    setup = _shown_on(setup, finding)
    why = [
        *_broken_rule(finding),
        f"Requires FuzzGraph: {plain(reason)}. Install:",
        *(f"    {line}" for line in install_lines(setup)),
        "",
        "Run it: python THIS_FILE; exit code 1 and the finding, 0 if it is not reproduced, or "
        f"{CANNOT_RUN} where it cannot run.",
    ]
    key = f"KEY = {finding.key!r}  # oracle, clause, target, buffer, mode"
    said = f"HEADLINE = {headline(finding)!r}"
    imports = [*_imports(setup, "sys"), *_checked_device(setup)]
    return _file(case, finding, why, [*imports, *_constants(said, case, setup), key], _MAIN)


def _checked_device(setup: Setup) -> list[str]:
    return ["import torch", "", *device_check(), ""] if setup.device != "cpu" else []


def _broken_rule(finding: Finding) -> list[str]:
    """The rule of handing over; the message has the values of both sides."""
    broken = str(finding.detail.get("rule"))
    if finding.oracle != "handover" or broken not in handover.RULES:
        return []
    return [f"The rule {broken!r}: {handover.RULES[broken]} (docs/oracles.md, handover).", ""]


def test_name(case: Case, finding: Finding) -> str:
    """`test_<clause>_<buffer>_<digest>`."""
    words = [finding.clause, finding.buffer or finding.stage]
    name = identifier("_".join(words)).rstrip("_")
    return re.sub(r"_+", "_", f"test_{name}_{digest(case)[:12]}")


def pytest_file(case: Case, finding: Finding, setup: Setup) -> str:
    """A pytest file with one test, which fails with the finding."""
    setup = _shown_on(setup, finding)
    why = [
        "Fails with the finding, passes once it is fixed. Run it: pytest THIS_FILE. Install:",
        *(f"    {line}" for line in install_lines(setup)),
    ]
    test = f"""
def {test_name(case, finding)}():
    fuzzgraph.check(fuzzgraph.decode_case(CASE), **SETUP)
"""
    said = 'HEADLINE = "FindingError"  # in what pytest prints when the case shows a finding'
    skip = [
        "import pytest",
        "import torch",
        "",
        "pytestmark = pytest.mark.skipif(",
        '    not torch.cuda.is_available(), reason="needs a CUDA or HIP device"',
        ")",
        "",
    ]
    imports = [*_imports(setup), *(skip if setup.device != "cpu" else [])]
    return _file(case, finding, why, [*imports, *_constants(said, case, setup)], test)
