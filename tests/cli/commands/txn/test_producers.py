"""`fencepost txn producers` on an embedded broker."""

from __future__ import annotations

from tests.cli.running import Commands
from tests.forensics.situations.open_transactions import several_producers


def test_producers_are_listed_with_their_ids(servers: str, commands: Commands, name: str) -> None:
    with several_producers(servers, name, [f"{name}-1", f"{name}-2"]) as opened:
        found = commands.json("txn", "producers", f"{name}:0")
        assert found == commands.json("txn", "producers", name) or len(found) == 2
    assert [row["transactional_id"] for row in found] == [f"{name}-1", f"{name}-2"]
    assert [row["producer_id"] for row in found] == [each.identity.producer_id for each in opened]
    assert [(row["start_offset"], row["pins"]) for row in found] == [(0, True), (1, False)]
    assert [row["last_sequence"] for row in found] == [0, 0]
    assert found[0]["coordinator_epoch"] is None
