"""The list of planted bugs fits the source.

`make mutants`, which takes minutes, checks that the tests catch them.
"""

from __future__ import annotations

import pytest

from tools.mutants.__main__ import TIMEOUT
from tools.mutants.changes import changed_since, concerns
from tools.mutants.document import DOCUMENT
from tools.mutants.mutants import ROOT, SOURCE, Mutant, StaleMutantError, load_mutants

MUTANTS = load_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_planted_bug_compiles_and_names_existing_tests(mutant: Mutant) -> None:
    compile(mutant.apply(SOURCE), mutant.file, "exec")
    old, new = mutant.change
    assert old != new
    assert mutant.why.endswith(".")
    for test in mutant.tests:
        file, _, function = test.partition("::")
        assert (ROOT / file).exists(), test
        assert f"def {function}" in (ROOT / file).read_text() if function else True, test


def test_the_list_covers_the_packages_behind_the_guarantees() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    rooms = {mutant.room for mutant in MUTANTS}
    assert {"coordinator", "broker", "partition", "log", "client", "spark"} <= rooms


def test_a_planted_bug_whose_source_line_is_gone_is_an_error() -> None:
    stale = Mutant("stale", "base/ids.py", "no such line", "another", "It is gone.", ())
    with pytest.raises(StaleMutantError, match="occurs 0 times"):
        stale.apply(SOURCE)


def test_the_page_lists_every_planted_bug() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    missing = [mutant.name for mutant in MUTANTS if f"| {mutant.name} |" not in page]
    assert missing == [], "run `make mutants DOCS=1`"


def test_a_bug_is_planted_again_when_its_room_or_one_of_its_tests_changed() -> None:
    bug = Mutant("a", "log/log.py", "a", "b", "Why.", ("tests/log", "tests/broker/test_a.py::b"))
    for file in ("src/fencepost/log/swap.py", "tests/log/test_swap.py", "tests/broker/test_a.py"):
        assert concerns(bug, frozenset({file})), file
    assert not concerns(bug, frozenset({"src/fencepost/logs.py", "tests/broker/test_ab.py"}))


def test_all_bugs_are_planted_when_the_last_complete_run_is_unknown() -> None:
    assert changed_since(None, MUTANTS) == MUTANTS
    assert changed_since("0" * 40, MUTANTS) == MUTANTS


@pytest.mark.parametrize(
    ("output", "hangs"),
    [
        ("FAILED tests/a.py::test_b - Failed: Timeout (>60.0s) from pytest-timeout.", True),
        ("FAILED tests/a.py::test_b - Failed: Timeout >60.0s", True),
        ("+++++++++++++ Timeout +++++++++++++", True),
        ("FAILED tests/a.py::test_b - TimeoutError: no reply", False),
        ("FAILED tests/a.py::test_b - AssertionError: REQUEST_TIMED_OUT", False),
    ],
)
def test_a_test_that_runs_into_its_timeout_has_caught_nothing(output: str, hangs: bool) -> None:
    assert bool(TIMEOUT.search(output)) is hangs
