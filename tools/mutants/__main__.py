"""Plants each bug of the list in a copy of the source and runs its tests."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tools.mutants.changes import changed_since
from tools.mutants.document import last_complete_run, write_document
from tools.mutants.mutants import ROOT, SOURCE, Mutant, StaleMutantError, load_mutants
from tools.processes import die_with_the_parent

PATIENCE_SECONDS: Final = 300
"""Tests that run for longer hang."""
TESTS_FAILED: Final = 1
HUNG: Final = -1
"""Instead of an exit code. No test has noticed the bug: where each hangs, none says what is wrong,
and a slow machine looks the same."""
RESULTS: Final = ROOT / "build" / "mutants.json"
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
TIMEOUT: Final = re.compile(r"^(?:FAILED|ERROR) .* Timeout [(>]|^\++ Timeout \++$", re.MULTILINE)
"""The first failure, after which pytest stops, is that of pytest-timeout."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one bug."""

    mutant: Mutant
    caught_by: str | None
    """The first test that failed; None if the bug survived."""
    seconds: float
    has_hung: bool = False
    """Whether a test ran into its timeout instead."""


class Tree:
    """One copy of the source, for one pytest run at a time."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        shutil.copytree(SOURCE, self.source, ignore=shutil.ignore_patterns("__pycache__"))
        self._touched = int(time.time())

    def write(self, path: str, text: str) -> None:
        """Writes a file with a new time in seconds, by which compiled files are matched."""
        file = self.source / path
        file.write_text(text, encoding="utf-8")
        self._touched += 1
        os.utime(file, (self._touched, self._touched))

    def run(self, tests: tuple[str, ...], jobs: int = 1) -> tuple[int, str]:
        """The exit code of pytest and its output."""
        paths = f"{self.source} {ROOT}"
        command = [sys.executable, "-m", "pytest", *tests, "-x", "-q", "--no-header"]
        command += ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else ["-p", "no:xdist"]
        command += ["-p", "no:cacheprovider", "-o", f"pythonpath={paths}", "--tb=no"]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            # The same hypothesis examples in every run.
            env={**os.environ, "CI": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=die_with_the_parent,  # noqa: PLW1509 - nothing in it but one system call.
        ) as process:
            try:
                output, _ = process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return HUNG, ""
        return (HUNG if TIMEOUT.search(output) else process.returncode), output


def try_mutant(mutant: Mutant, tree: Tree) -> Result:
    """Plants the bug, runs its tests, and reverts it."""
    started = time.monotonic()
    planted = mutant.apply(tree.source)
    whole = (tree.source / mutant.path).read_text(encoding="utf-8")
    tree.write(mutant.path, planted)
    try:
        code, output = tree.run(mutant.tests)
    finally:
        tree.write(mutant.path, whole)
    seconds = time.monotonic() - started
    if code in (0, HUNG):
        return Result(mutant, None, seconds, has_hung=code == HUNG)
    if code != TESTS_FAILED:
        raise StaleMutantError(f"{mutant.name}: pytest ended with {code}:\n{output[-2000:]}")
    found = FAILED.search(output)
    return Result(mutant, found[1] if found else "a failure", seconds)


def check_tests(mutants: list[Mutant], tree: Tree, jobs: int) -> None:
    """Checks that all tests pass without a bug; SystemExit if not."""
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    print(f"without a bug: {len(tests)} test files", flush=True)
    code, output = tree.run(tests, jobs)
    if code != 0:
        print(output[-4000:])
        sys.exit("The tests fail without a bug. Nothing can be said about the list.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a part of a name or file")
    parser.add_argument(
        "--changed",
        action="store_true",
        help="those whose room or tests changed since the last complete run",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write-docs", action="store_true", help="write docs/mutants.md")
    options = parser.parse_args()
    everything = load_mutants()
    mutants = [
        mutant
        for mutant in everything
        if not options.only or any(o in mutant.name or o in mutant.file for o in options.only)
    ]
    for mutant in mutants:
        mutant.apply(SOURCE)  # An outdated list is reported at once.
    if options.changed:
        mutants = changed_since(last_complete_run(), mutants)
        print(f"{len(mutants)} of {len(everything)}: their room or tests have changed", flush=True)
        if not mutants:
            return 0
    started = time.monotonic()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="fencepost-mutants-") as folder:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(Tree(Path(folder) / str(number)))

        def attempt(mutant: Mutant) -> Result:
            tree = trees.get()
            try:
                return try_mutant(mutant, tree)
            finally:
                trees.put(tree)

        first = trees.get()
        check_tests(mutants, first, options.jobs)
        trees.put(first)
        with ThreadPoolExecutor(options.jobs) as pool:
            for number, result in enumerate(pool.map(attempt, mutants), start=1):
                results.append(result)
                word = f"caught by {result.caught_by}" if result.caught_by else "SURVIVED"
                place = f"{number:3}/{len(mutants)}"
                print(f"{place} {result.seconds:5.1f} s  {result.mutant.name}: {word}", flush=True)
    survivors = [result.mutant.name for result in results if result.caught_by is None]
    minutes = (time.monotonic() - started) / 60
    print(f"{len(results) - len(survivors)} of {len(results)} caught in {minutes:.1f} minutes")
    for name in survivors:
        print(f"survived: {name}")
    saved = save_results(results)
    if options.write_docs:
        untried = [mutant.name for mutant in everything if not saved.get(mutant.name)]
        if untried:
            print(f"docs/mutants.md was not written; not caught yet: {', '.join(untried)}")
            return 1
        caught = [(mutant, saved[mutant.name]) for mutant in everything]
        write_document(caught, complete=len(results) == len(everything))
    return 1 if survivors else 0


def save_results(results: list[Result]) -> dict[str, str]:
    """Records which test caught what, so that the page can be written from partial runs."""
    saved: dict[str, str] = {}
    if RESULTS.exists():
        saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    saved.update({each.mutant.name: each.caught_by or "" for each in results})
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(saved, indent=1), encoding="utf-8")
    return saved


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StaleMutantError as problem:
        sys.exit(str(problem))
