"""docs/mutants.md: the list and the result of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tools.mutants.mutants import ROOT, Mutant

DOCUMENT: Final = ROOT / "docs" / "mutants.md"

INTRODUCTION: Final = """# Planted bugs

`make mutants` plants each of these bugs in a copy of the source, one at a time, and runs the tests
named in `tools/mutants/list.toml`. Every bug must be caught; the tool fails if one survives. It is
a step of continuous integration (`.ci/run`), after `make test`. `make mutants ONLY=ledger` runs
those whose name or file contains the word. If you change a line in which a bug is planted, update
its entry in the list.

On 2026-11-16 a run of 137 of them took 3.3 minutes on two cores, with other tests running.
`make mutants DOCS=1` writes this page.
"""


def write_document(results: list[tuple[Mutant, str]]) -> None:
    """Replaces the page."""
    day = datetime.now(UTC).date().isoformat()
    lines = [INTRODUCTION]
    lines.append(f"On {day}: {len(results)} of {len(results)} caught.\n")
    for room in dict.fromkeys(mutant.room for mutant, _ in results):
        lines += [f"## {room}", "", "| bug | file | change | what it would break | caught by |"]
        lines.append("|---|---|---|---|---|")
        lines += [_row(mutant, test) for mutant, test in results if mutant.room == room]
        lines.append("")
    DOCUMENT.write_text("\n".join(lines), encoding="utf-8")


def _row(mutant: Mutant, caught_by: str) -> str:
    old, new = mutant.change
    change = f"{_code(old)} → {_code(new)}"
    test = caught_by.partition("[")[0]
    file, _, name = test.partition("::")
    shown = f"`{Path(file).name}`: {name}" if name else test
    return f"| {mutant.name} | `{mutant.file}` | {change} | {mutant.why} | {shown} |"


def _code(line: str) -> str:
    return "`" + line.replace("|", "\\|") + "`"
