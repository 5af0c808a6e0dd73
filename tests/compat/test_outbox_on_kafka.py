"""Goal: the outbox relay is exactly-once on Apache Kafka as it is on fencepost.

Method: the tests of tests/outside/outbox that use only the wire protocol run again on Apache Kafka,
in a separate process. Then another Apache Kafka is killed around the commit of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.outside.conftest import dsn, postgres  # noqa: F401 - fixtures.
from tests.outside.outbox.stage import OutboxStage
from tests.outside.outbox.test_relay_crashes import kill_and_relay, relay_to_the_end
from tools.apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from tests.compat.conftest import Side

RELAY: Final = "tests/outside/outbox/test_relay.py::test_"
REFUSED: Final = "tests/outside/outbox/test_refused.py::test_"
TABLE: Final = "tests/outside/outbox/test_table_source.py::test_"
CRASHES: Final = "tests/outside/outbox/test_relay_crashes.py::test_"

SELECTION: Final = [
    f"{RELAY}rows_arrive_once_in_the_order_of_their_commits",
    f"{RELAY}a_second_run_sends_nothing_again",
    f"{RELAY}messages_in_the_log_need_no_table",
    f"{RELAY}a_transaction_that_may_not_be_split_is_one_kafka_transaction",
    f"{RELAY}a_topic_that_does_not_exist_is_named_and_the_row_is_kept",
    f"{RELAY}a_second_relay_takes_over_and_the_first_says_so",
    f"{RELAY}transaction_version_1_keeps_the_promise_too",
    f"{RELAY}a_fenced_relay_commits_nothing",
    f"{RELAY}a_foreign_database_is_refused_and_its_relay_is_not_fenced",
    f"{RELAY}a_restored_snapshot_is_refused_until_it_is_accepted",
    *(
        f"{REFUSED}{name}[{limits}-{place}]"
        for name in (
            "a_row_that_is_too_large_is_a_dead_letter_wherever_it_is",
            "a_relay_that_stops_has_committed_the_rows_before_and_goes_on_there",
        )
        for limits, place in (("split", "two"), ("whole", "middle"), ("single", "first"))
    ),
    f"{REFUSED}batches_that_are_larger_than_the_topic_accepts_become_smaller",
    f"{REFUSED}rows_without_a_key_for_a_compacted_topic_are_put_aside",
    f"{REFUSED}a_row_for_an_unknown_topic_is_put_aside_or_stops_after_the_rows_before",
    f"{REFUSED}a_dead_letter_that_does_not_fit_leaves_out_the_value_then_the_key",
    f"{REFUSED}a_dead_letter_that_is_refused_too_stops_the_relay_and_skips_nothing",
    f"{REFUSED}transaction_version_1_puts_rows_aside_too",
    f"{TABLE}rows_arrive_once_in_the_order_of_their_commits",
    f"{TABLE}concurrent_writers_keep_the_order_of_each_key_while_relays_die",
    f"{TABLE}one_hundred_thousand_rows_in_one_transaction",
    f"{TABLE}nothing_is_in_kafka_that_a_crash_can_still_take_back[committed]",
    f"{TABLE}a_second_relay_takes_over_and_the_first_says_so",
    f"{TABLE}a_fenced_relay_commits_nothing",
    f"{TABLE}a_restored_snapshot_is_refused_until_it_is_accepted",
    *(
        f"{CRASHES}a_{victim}_that_is_killed_loses_and_repeats_nothing[{mode}-{step}-2]"
        for victim, mode in (("relay", "wal"), ("database", "wal"), ("relay", "table"))
        for step in ("rows collected", "row updated", "position written", "committed", "confirmed")
        if (mode, step) != ("table", "confirmed")
    ),
]


@pytest.mark.timeout(450)
def test_the_outbox_is_exactly_once_on_apache_kafka(apache_kafka: Side, tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="the postgres extra is not installed")
    assert f"{len(SELECTION)} passed" in apache_kafka.run_tests(SELECTION, tmp_path)


class Restarted:
    """Apache Kafka on one folder and port."""

    def __init__(self, data: Path) -> None:
        self.broker = ApacheKafka(data)

    def kill_and_start(self) -> None:
        self.broker.kill()
        self.broker = ApacheKafka(self.broker.data, port=self.broker.port)


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    kafka = Restarted(tmp_path_factory.mktemp("killed-kafka") / "data")
    yield kafka
    kafka.broker.stop()


@pytest.mark.parametrize(
    "step", ["fenced", "begun", "row updated", "position written", "committed"]
)
def test_an_apache_kafka_that_is_killed_loses_and_repeats_nothing(
    restarted: Restarted,
    dsn: str,  # noqa: F811
    step: str,
) -> None:
    outbox = OutboxStage(dsn, restarted.broker.bootstrap_servers)
    outbox.workload()
    kill_and_relay(outbox, restarted.kill_and_start, step, 1)
    relay_to_the_end(outbox)
