"""Screens as people see them in a terminal of 80 columns, kept as text files.

`FENCEPOST_WRITE_SCREENS=1` writes the files anew; look at the difference before you keep it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack

import confluent_kafka
import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.cli import main
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record
from tests.cli.kept_screens import FOLDER
from tests.cli.running import Commands
from tests.cli.screen import assert_screen, on_terminal
from tests.forensics.situations.open_transactions import (
    hanging_transaction,
    pinned_partition,
    several_producers,
    stuck_marker_on_fencepost,
)

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
    file = FOLDER / f"{screen}.txt"
    if os.environ.get("FENCEPOST_WRITE_SCREENS"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.fixture(scope="module")
def scene() -> Iterator[str]:
    """A broker with one of each kind of pinned partition."""
    with fencepost.Broker() as own, ExitStack() as stack:
        servers = own.bootstrap_servers
        # The tests of all screens may take longer than the usual timeout.
        long = {"timeout_ms": 900_000}
        stack.enter_context(pinned_partition(servers, "orders", "refunds-1", partitions=2, **long))
        payers = ["billing-1", "billing-2"]
        stack.enter_context(several_producers(servers, "payments", payers, **long))
        stack.enter_context(hanging_transaction(servers, "audit"))
        stack.enter_context(stuck_marker_on_fencepost(own, "shipments", "shipping-7"))
        yield servers


@pytest.mark.parametrize(
    ("columns", "words", "code"),
    [
        (80, "pins", 0),
        (80, "txn list", 0),
        (80, "txn producers payments", 0),
        (80, "txn find-hanging", 0),
        (80, "txn describe refunds-1", 0),
        (80, "txn fence shipping-7", 1),
        (80, "txn abort orders:0 --start-offset 0", 1),
        (120, "pins", 0),
        (120, "txn list", 0),
        (120, "txn producers payments", 0),
        # The last one: it changes the scene.
        (80, "txn fence refunds-1 --yes", 0),
    ],
)
def test_a_screen_is_as_kept(
    scene: str,
    columns: int,
    words: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`pins` on a real terminal, the others in this process."""
    if words == "pins":
        arguments = [*words.split(), "--bootstrap-servers", scene]
        result, shown = on_terminal(*arguments, columns=columns)
        assert result == code, shown
    else:
        monkeypatch.setattr("fencepost.cli.output._room", lambda: columns)
        shown = Commands(scene, capsys).run(*words.split(), code=code)
    # A slow machine takes longer than a second.
    shown = "".join(
        line for line in shown.splitlines(keepends=True) if "waiting for an answer" not in line
    )
    kept = words.removesuffix(" --yes").replace(" ", "-").replace(":", "-")
    assert_screen(f"{kept}-{columns}", shown, servers=scene)
