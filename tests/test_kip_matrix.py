"""The matrix of KIPs says what the broker does."""

from __future__ import annotations

import pytest

from fencepost.wire.apis import ApiKey
from tools.kip_matrix import NO, YES, Kip, matrix, problems, unlisted


def test_every_row_agrees_with_the_tables_of_the_broker() -> None:
    assert list(problems()) == []


def test_every_kip_that_the_source_or_the_documentation_names_has_a_row() -> None:
    assert unlisted() == set()


def test_rows_show_the_versions_behind_their_answer() -> None:
    (row,) = (line for line in matrix() if line.startswith("| 447 "))
    assert "| 2.5 | yes | TxnOffsetCommit v3, OffsetFetch v7 |" in row


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (Kip(1, "", "1.0", YES, served=((ApiKey.FETCH, 99),)), "Fetch v99 is not served"),
        (Kip(1, "", "1.0", YES, served=((ApiKey.SHARE_FETCH, 1),)), "ShareFetch v1 is not served"),
        (Kip(1, "", "1.0", NO, missing=("end_txn",)), "end_txn is served by now"),
        (Kip(1, "", "1.0", YES, settings=("no.such",)), "there is no setting no.such"),
        (Kip(1, "", "1.0", YES, metrics=("no_such",)), "there is no metric no_such"),
        (Kip(1, "", "1.0", YES, test="tests/no_such.py"), "there is no tests/no_such.py"),
        (Kip(1, "", "1.0", YES), "nothing shows that the answer is 'yes'"),
        (Kip(1, "", "1.0", "maybe"), "'maybe' is no answer"),
    ],
)
def test_a_row_that_is_no_longer_true_is_found(row: Kip, problem: str) -> None:
    (found,) = problems((("Some", (row,)),))
    assert problem in found


def test_rows_are_in_order_and_not_repeated() -> None:
    one, two = Kip(1, "", "1.0", NO), Kip(2, "", "1.0", NO)
    assert list(problems((("Some", (two, one)),))) == ["Some is not in the order of the numbers"]
    assert list(problems((("Some", (one,)), ("More", (one,))))) == ["KIP-1 has two rows"]
