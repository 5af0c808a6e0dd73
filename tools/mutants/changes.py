"""Which planted bugs a change may have hidden.

A bug that was caught stays caught as long as neither its room nor the tests that catch it change.
Other files (pyproject.toml, a conftest.py of a parent folder, another room) could matter too; the
complete run before an issue is called resolved is for those.
"""

from __future__ import annotations

import subprocess

from tools.mutants.mutants import ROOT, Mutant


def changed_since(commit: str | None, mutants: list[Mutant]) -> list[Mutant]:
    """The bugs whose room or tests differ from the commit: all, if it is unknown here."""
    files = _changed_files(commit) if commit else None
    if files is None:
        return mutants
    return [mutant for mutant in mutants if concerns(mutant, files)]


def concerns(mutant: Mutant, files: frozenset[str]) -> bool:
    """Whether one of the changed files is in the bug's room or is one of its tests."""
    tests = {test.partition("::")[0] for test in mutant.tests}
    return any(
        file.startswith((f"src/fencepost/{mutant.room}/", "tools/mutants/"))
        or any(file == test or file.startswith(f"{test}/") for test in tests)
        for file in files
    )


def _changed_files(commit: str) -> frozenset[str] | None:
    """Against the working tree, with files that git does not track yet; None if git cannot tell."""
    listed: list[str] = []
    for command in (
        ["git", "diff", "--name-only", "--no-renames", commit, "--"],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ):
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            return None
        listed += answer.stdout.splitlines()
    return frozenset(listed)
