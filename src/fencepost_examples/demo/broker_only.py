"""`fencepost demo --broker-only`: a broker, a producer and a group of two consumers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import fencepost
from fencepost.base.failures import FencepostError

MESSAGES = 10_000
PARTITIONS = 4
TOPIC = "settlements"
DEADLINE_SECONDS = 30


def demo_broker() -> None:
    """Runs the small demo, and checks that every message arrived once."""
    from rich.console import Console

    try:
        import confluent_kafka
    except ImportError as problem:
        raise FencepostError(
            "The demo uses confluent-kafka: pip install confluent-kafka"
        ) from problem
    console = Console()
    with fencepost.Broker() as broker:
        console.print(f"[bold]1.[/] a broker serves at {broker.bootstrap_servers}")
        common = {"bootstrap.servers": broker.bootstrap_servers}
        _create_topic(common)
        console.print(f"[bold]2.[/] the topic {TOPIC} has {PARTITIONS} partitions")
        _produce(confluent_kafka, common)
        console.print(f"[bold]3.[/] an idempotent producer wrote {MESSAGES:,} settlements")
        seen, shares = _consume(confluent_kafka, common)
        for name, partitions in shares.items():
            console.print(f"[bold]4.[/] {name} of the group read the partitions {partitions}")
        broker.restart()
        console.print("[bold]5.[/] the broker was stopped and started again")
        _consume_more(confluent_kafka, common)
        console.print(
            "[bold]6.[/] the group continued from its committed offsets: nothing was read twice"
        )
    lost = MESSAGES - len(seen)
    doubled = sum(count - 1 for count in seen.values())
    console.print(f"[bold]{MESSAGES:,} written, {lost} lost, {doubled} doubled[/]")
    if lost or doubled:
        raise FencepostError("The demo failed: see the line above.")


def _create_topic(common: dict[str, str]) -> None:
    import confluent_kafka.admin

    admin: Any = confluent_kafka.admin
    client = admin.AdminClient(common)
    client.create_topics([admin.NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(DEADLINE_SECONDS)


def _produce(kafka: Any, common: dict[str, str]) -> None:
    producer = kafka.Producer({**common, "enable.idempotence": True, "compression.type": "lz4"})
    for number in range(MESSAGES):
        producer.produce(TOPIC, f"refund-{number}", key=f"merchant-{number % 97}")
        producer.poll(0)
    if producer.flush(DEADLINE_SECONDS):
        raise FencepostError("The broker did not acknowledge everything in time.")


def _member(kafka: Any, common: dict[str, str]) -> Any:
    member = kafka.Consumer(
        {
            **common,
            "group.id": "demo",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    member.subscribe([TOPIC])
    return member


def _consume(kafka: Any, common: dict[str, str]) -> tuple[Counter[bytes], dict[str, list[int]]]:
    """Two members read until both have partitions and all messages were read; then they commit."""
    members = {"member one": _member(kafka, common), "member two": _member(kafka, common)}
    while not all(member.assignment() for member in members.values()):
        for member in members.values():
            _poll(member, 0.05)
    seen: Counter[bytes] = Counter()
    for member in members.values():
        for place in member.assignment():
            place.offset = 0
            member.seek(place)
    while len(seen) < MESSAGES:
        for member in members.values():
            seen.update(_poll(member, 0.05))
    shares = {
        name: sorted(place.partition for place in member.assignment())
        for name, member in members.items()
    }
    for member in members.values():
        member.commit(asynchronous=False)
        member.close()
    return seen, shares


def _poll(member: Any, seconds: float) -> list[bytes]:
    return [message.value() for message in member.consume(1000, seconds) if not message.error()]


def _consume_more(kafka: Any, common: dict[str, str]) -> None:
    producer = kafka.Producer(common)
    producer.produce(TOPIC, "refund-after-the-restart")
    producer.flush(DEADLINE_SECONDS)
    member = _member(kafka, common)
    try:
        message = member.poll(DEADLINE_SECONDS)
        if message is None or message.value() != b"refund-after-the-restart":
            raise FencepostError("The group did not continue from its committed offsets.")
    finally:
        member.close()
