"""`fencepost txn fence`, `abort` and `commit`: nothing is changed without a yes."""

from __future__ import annotations

from tests.cli.running import Commands
from tests.cli.screen import on_terminal
from tests.forensics.situations.open_transactions import pinned_partition


def test_without_a_yes_nothing_is_changed(servers: str, commands: Commands, name: str) -> None:
    with pinned_partition(servers, name, name):
        arguments = ["txn", "commit", name, "--bootstrap-servers", servers]
        code, shown = on_terminal(*arguments, answer="n\n")
        assert code == 1
        assert shown.strip().endswith("fencepost: Nothing was changed.")
        assert len(commands.json("pins", name)) == 1


def test_a_yes_on_the_terminal_is_enough(servers: str, commands: Commands, name: str) -> None:
    with pinned_partition(servers, name, name):
        arguments = ["txn", "fence", name, "--bootstrap-servers", servers]
        code, shown = on_terminal(*arguments, answer="y\n")
        assert (code, "Continue? [y/N]" in shown) == (0, True)
        assert commands.json("pins", name) == []
