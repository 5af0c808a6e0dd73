"""Commands that are proposed."""

from __future__ import annotations

import shlex

from fencepost.forensics.commands import abort_command, fence_command
from tests.forensics.facts import ORDERS


def test_the_command_is_one_that_a_shell_accepts_for_any_id() -> None:
    where = ["--bootstrap-servers", "h:1", "--config", "my file"]
    assert str(fence_command("it's odd")) == """fencepost txn fence 'it'"'"'s odd'"""
    for odd in ("--yes", "-", "a -- b", "$(x) `y`", " ", "ü\n", "a:0"):
        words = shlex.split(fence_command(odd).text(where))
        assert words[:3] == ["fencepost", "txn", "fence"]
        assert odd in words
        assert ("--" in words) is odd.startswith("-")
        assert " ".join(where) in " ".join(words)
    aborted = abort_command(ORDERS, 7, 10).text(where[:2])
    assert aborted == (
        "fencepost txn abort orders-0 --producer-id 7 --start-offset 10 --bootstrap-servers h:1"
    )
