"""docs/mutants.md: the list and the result of a run."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tools.mutants.mutants import ROOT, Mutant

DOCUMENT: Final = ROOT / "docs" / "mutants.md"

INTRODUCTION: Final = """# Planted bugs

`make mutants` plants each of these bugs in a copy of the source, one at a time, and runs the tests
named in `tools/mutants/list.toml`. Every bug must be caught; the tool fails if one survives.
Continuous integration (`.ci/run`) runs `make mutants CHANGED=1` after `make test`: the bugs whose
room or
tests have changed since the last complete run. `make mutants ONLY=ledger` runs those whose name or
file contains the word. If you change a line in which a bug is planted, update its entry in the
list.

`make mutants DOCS=1` runs all of them and writes this page.
"""
_COMPLETE_RUN: Final = re.compile(
    r"^The last complete run: .* at commit ([0-9a-f]+)\.$", re.MULTILINE
)


def write_document(results: list[tuple[Mutant, str]], complete: bool) -> None:
    """Replaces the page; a partial run leaves the line of the last complete one as it is."""
    lines = [INTRODUCTION, _run_line(len(results)) if complete else _last_run_line()]
    for room in dict.fromkeys(mutant.room for mutant, _ in results):
        lines += [f"## {room}", "", "| bug | file | change | what it would break | caught by |"]
        lines.append("|---|---|---|---|---|")
        lines += [_row(mutant, test) for mutant, test in results if mutant.room == room]
        lines.append("")
    DOCUMENT.write_text("\n".join(lines), encoding="utf-8")


def last_complete_run() -> str | None:
    """The commit at which every bug was caught; None if the page names none."""
    found = _COMPLETE_RUN.search(DOCUMENT.read_text(encoding="utf-8"))
    return found[1] if found else None


def _run_line(count: int) -> str:
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    day = datetime.now(UTC).date().isoformat()
    return f"The last complete run: {count} of {count} caught on {day} at commit {commit[:12]}.\n"


def _last_run_line() -> str:
    found = _COMPLETE_RUN.search(DOCUMENT.read_text(encoding="utf-8"))
    return f"{found[0]}\n" if found else ""


def _row(mutant: Mutant, caught_by: str) -> str:
    old, new = mutant.change
    change = f"{_code(old)} → {_code(new)}"
    test = caught_by.partition("[")[0]
    file, _, name = test.partition("::")
    shown = f"`{Path(file).name}`: {name}" if name else test
    return f"| {mutant.name} | `{mutant.file}` | {change} | {mutant.why} | {shown} |"


def _code(line: str) -> str:
    return "`" + line.replace("|", "\\|") + "`"
