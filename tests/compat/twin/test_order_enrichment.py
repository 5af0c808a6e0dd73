"""Goal: the consume-transform-produce loop of a Java application is exactly-once.

Method: tests/compat/java/OrderEnrichment.java runs on both: four instances one after the other
under one transactional id, of which one crashes in a transaction, one aborts and reads again, and
one is fenced. Then everything is counted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.compat.twin.talk import Twins

ORDERS = 300


@pytest.mark.timeout(180)
def test_every_order_is_enriched_once(twins: Twins) -> None:
    results = {}
    for side in (twins.theirs, twins.ours):
        result = side.tools.run("OrderEnrichment", side.bootstrap_servers)
        assert result.code == 0, f"{side.name}: {result.err}"
        results[side.name] = json.loads(result.out)
    theirs, ours = results.values()
    assert theirs == {
        "1 crashed": "stopped",
        "2 failed once": "ended",
        "3 was taken over": "ProducerFencedException",
        "4 finished": "ended",
        "5 enriched": ORDERS,
        "6 different": ORDERS,
        "7 in order": True,
        "8 aborted ones are there": True,
        "9 offsets": [ORDERS // 2, ORDERS // 2],
    }
    assert ours == theirs
