"""The loop: read settlements, write refunds, audit rows and offsets, commit; and error handling.

    error      meaning                                  reaction
    fenced     another instance has taken over, or      close and stop: all further requests
               the transaction timed out                would be refused
    abortable  this transaction cannot be committed     abort, return to the committed offsets,
                                                        begin again
    retriable  a transient error                        repeat the call after a pause; fatal
                                                        after too many attempts
    fatal      everything else                          abort if possible, close, report

A failed commit is never followed by an abort: after a retriable error its outcome is unknown. If
the commit cannot be completed, this instance ends. The next instance's `init_transactions` ends the
transaction, and the committed offsets show whether these settlements are done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from fencepost_examples.refunds.processor.ports import (
    AbortableError,
    FatalError,
    FencedError,
    Kafka,
    KafkaFailure,
    Message,
    Place,
    RetriableError,
)
from fencepost_examples.refunds.processor.rows import (
    REFUND_AUDIT,
    REFUNDS_EMITTED,
    encode,
    read_settlement,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ATTEMPTS: Final = 8
FIRST_PAUSE_SECONDS: Final = 0.05
"""Doubles with each attempt: eight attempts take about six seconds."""


class RefundsProcessor:
    """One shard of the refunds service. After an exception it is closed; start another one."""

    def __init__(self, kafka: Kafka, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._kafka = kafka
        self._pause = pause

    def start(self) -> None:
        """Takes over from an earlier instance."""
        try:
            self._retried(self._kafka.init_transactions)
        except KafkaFailure:
            self._kafka.close()
            raise

    def run(self, *, stop: Callable[[], bool]) -> None:
        """Processes until `stop` returns True."""
        while not stop():
            self.process_some()
        self._kafka.close()

    def process_some(self) -> int:
        """Runs one transaction. Returns how many settlements it has processed."""
        try:
            return self._process_some()
        except FencedError:
            log.warning("another instance has taken over, or the transaction timed out; stopping")
            self._kafka.close()
            raise
        except BaseException:
            log.exception("this instance cannot continue")
            self._kafka.close()
            raise

    def _process_some(self) -> int:
        messages = self._retried(self._kafka.poll)
        if not messages:
            return 0
        try:
            self._transact(messages)
        except AbortableError as problem:
            log.info("aborting, and reading again from the committed offsets: %s", problem)
            self._retried(self._kafka.abort)
            self._retried(self._kafka.rewind)
            return 0
        except FatalError:
            self._abort_if_possible()
            raise
        return len(messages)

    def _transact(self, messages: Sequence[Message]) -> None:
        kafka = self._kafka
        kafka.begin()
        for message in messages:
            self._write(message)
        self._retried(lambda: kafka.send_offsets(next_offsets(messages)))
        self._retried(kafka.commit)

    def _write(self, message: Message) -> None:
        place = f"{message.topic}-{message.partition}@{message.offset}"
        refund, audit = read_settlement(message.value, place)
        key = audit.refund_id.encode()
        if refund is not None:
            row = encode(refund)
            self._retried(lambda: self._kafka.send(REFUNDS_EMITTED, key, row))
        self._retried(lambda: self._kafka.send(REFUND_AUDIT, key, encode(audit)))

    def _abort_if_possible(self) -> None:
        try:
            self._kafka.abort()
        except KafkaFailure as problem:
            # Nothing is lost: the timeout or the next instance aborts the transaction.
            log.warning("the transaction could not be aborted: %s", problem)

    def _retried(self, call: Callable[[], T]) -> T:
        pause_seconds = FIRST_PAUSE_SECONDS
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return call()
            except RetriableError as problem:
                log.info("trying again in %.2f s: %s", pause_seconds, problem)
                self._pause(pause_seconds)
                pause_seconds *= 2
        return call()


def next_offsets(messages: Sequence[Message]) -> dict[Place, int]:
    """Returns, per partition, the offset after the last message."""
    offsets: dict[Place, int] = {}
    for message in messages:
        offsets[message.topic, message.partition] = message.offset + 1
    return offsets
