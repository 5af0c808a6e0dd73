"""Screens as people see them in a terminal of 80 columns, kept as text files.

`FENCEPOST_WRITE_SCREENS=1` writes the files anew; look at the difference before you keep it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.cli import main
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record

SCREENS = Path(__file__).parent / "screens"
COLUMNS = 80

REPLACED = (
    (re.compile(r"(?<=topic id     )\S{22}"), "<topic id>            "),
    (
        re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        "00000000-0000-0000-0000-000000000000",
    ),
)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A topic with committed, aborted, open and hidden records, and a group that reads it."""
    with (
        fencepost.Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker,
        connect(broker.bootstrap_servers) as cluster,
    ):
        settings = {"cleanup.policy": "compact", "retention.ms": "86400000"}
        cluster.create_topics([NewTopic("refunds", 2, 1, settings)])
        for name, partition, count, commit in (
            ("a", 0, 40, True),
            ("b", 0, 5, False),
            ("c", 1, 7, True),
            ("d", 0, 12, None),
            ("e", 0, 3, True),
        ):
            transact(cluster, name, partition, count, commit)
        member = join(broker.bootstrap_servers)
        yield broker.bootstrap_servers
        member.close()


def transact(cluster: Cluster, name: str, partition: int, count: int, commit: bool | None) -> None:
    identity = cluster.init_producer_id(name)
    with cluster.writer(identity) as writer:
        record = Record(timestamp_ms=0, key=b"k", value=b"v" * 20)
        writer.write_records(TopicPartition("refunds", partition), [record] * count)
        writer.flush()
    if commit is not None:
        cluster.end_txn(identity, commit=commit)


def join(servers: str) -> confluent_kafka.Consumer:
    member = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "refunds-service",
            "client.id": "shop-1",
            "enable.auto.commit": False,
        }
    )
    member.subscribe(["refunds"])
    while not member.assignment():
        member.poll(0.05)
    place = confluent_kafka.TopicPartition("refunds", 0, 30)
    member.commit(offsets=[place], asynchronous=False)
    return member


@pytest.mark.parametrize(
    ("screen", "command"),
    [
        ("lag", "lag refunds-service"),
        ("lag-estimated", "lag refunds-service --max-read 0"),
        ("topic-list", "topic list --internal"),
        ("topic-describe", "topic describe refunds"),
        ("topic-consume", "topic consume refunds --from -3 --fields partition,offset,key,value"),
        ("group-list", "group list"),
        ("group-describe", "group describe refunds-service"),
        ("config-get", "config get --topic refunds"),
    ],
)
def test_the_screen_is_as_it_was_looked_at(
    servers: str,
    screen: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fencepost.cli.output._room", lambda: COLUMNS)
    assert main.run([*command.split(), "--bootstrap-servers", servers]) == 0
    shown = capsys.readouterr()
    lines = [line.rstrip() for line in (shown.out + shown.err).splitlines()]
    assert max(map(len, lines)) <= COLUMNS or screen == "topic-consume"
    text = f"$ fencepost {command}\n" + "\n".join(lines) + "\n"
    for pattern, instead in REPLACED:
        text = pattern.sub(instead, text)
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    file = SCREENS / f"{screen}.txt"
    if os.environ.get("FENCEPOST_WRITE_SCREENS"):
        file.write_text(text)
    assert text == file.read_text()
