"""A whole run: topic, producer ids, load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from bench.even import touch
from bench.generator.answers import Identity
from bench.generator.crowd import Crowd
from bench.generator.engine import Connection, Connections, Engine, Script
from bench.generator.job import Job
from bench.generator.reader import Reader
from bench.generator.routes import Route, find_routes
from bench.generator.scripts import make_batch, sender
from bench.generator.tally import Figures
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import LATEST

NOBODY: Final = Identity(-1, -1)


def run(job: Job) -> Figures:
    """Prepares the topic and the producers, and runs the job."""
    assert job.partitions % job.spread == 0, "the spread must divide the number of partitions"
    if job.is_cluster:
        assert job.is_transactional, "in a cluster, only transactions find their leaders"
        assert job.spread == 1, "in a cluster, the partitions of a request may have many leaders"
    # First, so that a broker that is down is noticed at once.
    first = [Connection(job.addresses[0]) for _ in range(job.producers)]
    with connect(job.bootstrap) as cluster:
        _create_topic(cluster, job)
        identities = [_identity(cluster, job, number) for number in range(job.producers)]
        routes = find_routes(cluster, job, first)
    engine = Engine()
    script = _scripts(job, engine, routes, identities)
    touch(job.room_bytes)
    return engine.run([route.connections for route in routes], script, job)


def _create_topic(cluster: Cluster, job: Job) -> None:
    topic = NewTopic(job.topic, job.partitions, configs={"file.delete.delay.ms": "0"})
    cluster.create_topics([topic], exist_ok=True)
    # Apache Kafka names the leaders before they lead: wait until each of them has answered.
    places = [TopicPartition(job.topic, number) for number in range(job.partitions)]
    cluster.list_offsets(dict.fromkeys(places, LATEST))


def _identity(cluster: Cluster, job: Job, number: int) -> Identity:
    if job.mode in ("acks1", "fetch"):
        return NOBODY
    # With `ids` and `open` this only makes the coordinators ready.
    name = None if job.mode == "idempotent" else job.transactional_id(number)
    identity = cluster.init_producer_id(name)
    return Identity(identity.producer_id, identity.producer_epoch)


def _scripts(
    job: Job, engine: Engine, routes: Sequence[Route], identities: list[Identity]
) -> Callable[[Connections, int], Script]:
    """The script of each producer."""
    if job.mode == "fetch":
        return lambda _, number: Reader(job, engine, routes[number].coordinator, number).script()
    batch = make_batch(job)
    if job.mode in ("ids", "open"):
        return lambda _, number: Crowd(job, engine, routes[number].coordinator, number).script(
            batch
        )
    kind = sender(job.mode)
    return lambda _, number: kind(job, engine, routes[number], number, identities[number]).script(
        batch
    )
