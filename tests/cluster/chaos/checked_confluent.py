"""confluent-kafka, with a limit to the one call that can last for ever.

`send_offsets_to_transaction` of librdkafka 2.16 ignores its timeout (its issue 5456). It waits for
the connection to the group's coordinator, and if that broker was missing in a reply to Metadata,
its connection is never opened again (issue 5511). The adapter has a setting that makes it look
again; if it hangs anyway, the process ends, as under a supervisor, and another one follows.

A broker that does not answer must not pass for this. When TxnOffsetCommit was withheld from the
broker, a call with a timeout of 10 s failed after 10 to 20 s, in five trials on a busy machine. The
limit is far above that, so such a copier gets errors, makes no progress, and that is a problem.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Final

from fencepost_examples.refunds.processor.ports import Place
from fencepost_examples.refunds.processor.with_confluent import ConfluentKafka

log = logging.getLogger(__name__)

GAVE_UP: Final = 75
"""The exit status of a copier whose client does not return."""
OVERDUE_SECONDS: Final = 35.0
"""After the timeout of a call; with it, less than `workload.STUCK_SECONDS`."""


class CheckedConfluent(ConfluentKafka):
    """One shard, whose process ends if the client hangs."""

    def send_offsets(self, offsets: Mapping[Place, int]) -> None:
        alarm = threading.Timer(self._timeout + OVERDUE_SECONDS, _give_up)
        alarm.daemon = True
        alarm.start()
        try:
            super().send_offsets(offsets)
        finally:
            alarm.cancel()


def _give_up() -> None:
    log.warning("send_offsets_to_transaction has ignored its timeout; this process ends")
    os._exit(GAVE_UP)
