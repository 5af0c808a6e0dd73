"""Goal: the refunds processor in Java settles everything once, whatever happens to an instance.

Method: tests/compat/java/RefundsProcessor.java runs on both. Its first instance commits, aborts,
dies between any two requests, resumes as a zombie or takes too long; its second one does the rest.
The output of both runs is compared, and counted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.compat.twin.talk import Twins

SETTLED = [f"RFD-{number}" for number in range(6)]
ENDS = {
    "commit": "finished",
    "abort": "finished",
    "dies-initialised": "died",
    "dies-begun": "died",
    "dies-refunded": "died",
    "dies-audited": "died",
    "dies-offsets-sent": "died",
    "dies-committed": "died",
    "zombie": "fenced",
    "timeout": "fenced",
}
"""How the first instance of each scenario ends."""
LEFT_BEHIND = {
    "abort": ("RFD-2", "RFD-3"),
    "dies-refunded": ("RFD-2",),
    "dies-audited": ("RFD-2",),
    "dies-offsets-sent": ("RFD-2", "RFD-3"),
    "zombie": ("RFD-2",),
    "timeout": ("RFD-2", "RFD-3"),
}
"""Refunds that were written and aborted: only read_uncommitted consumers see them."""


@pytest.mark.timeout(240)
def test_every_settlement_is_refunded_once(twins: Twins) -> None:
    results: dict[str, dict[str, Any]] = {}
    for side in (twins.theirs, twins.ours):
        result = side.tools.run("RefundsProcessor", side.bootstrap_servers)
        assert result.code == 0, f"{side.name}: {result.err}"
        results[side.name] = json.loads(result.out)
    theirs, ours = results.values()
    for name, saw in theirs.items():
        assert ours[name] == saw, name
    assert {name: saw["1 first instance"] for name, saw in ours.items()} == ENDS
    for name, saw in ours.items():
        assert saw["2 second instance"] == "finished"
        assert saw["3 refunds-emitted, read_committed"] == SETTLED
        assert saw["3 refund-audit, read_committed"] == SETTLED
        assert saw["4 offset"] == len(SETTLED)
        seen = saw["3 refunds-emitted, read_uncommitted"]
        assert sorted(seen) == sorted([*SETTLED, *LEFT_BEHIND.get(name, ())])
