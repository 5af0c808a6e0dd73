"""One run: a cluster, its workload, a schedule of faults, and the audit at the end."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.base.failures import FencepostError
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    NO_PRODUCER_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import LATEST
from fencepost.records.opened import open_batch
from fencepost.records.transaction_log import decode_key, decode_value
from tests.cluster.chaos import audit
from tests.cluster.chaos.audit import OpenTransaction, Seen
from tests.cluster.chaos.cluster_process import ClusterProcess
from tests.cluster.chaos.copier import CLIENTS, COPIES, SOURCE, decode_copy, group_of
from tests.cluster.chaos.faults import SESSION_SECONDS, Faults
from tests.cluster.chaos.schedule import make_schedule
from tests.cluster.chaos.workload import COPY_PARTITIONS, Workload, read_all

OPTIONS: Final = (
    f"--config=broker.session.timeout.ms={SESSION_SECONDS * 1000:.0f}",
    "--config=transaction.state.log.num.partitions=6",
    "--config=offsets.topic.num.partitions=6",
    "--config=transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
)
FINISH_SECONDS: Final = 120.0
SETTLE_SECONDS: Final = 40.0
"""Longer than the transaction timeout of the copiers."""


class Report(NamedTuple):
    """What a run has shown."""

    problems: list[str]
    faults: int
    copied: int
    restarted_copiers: list[str]
    """Copiers whose clients hung by themselves (`workload.FORGETFUL`, `checked_confluent`)."""
    seconds: float
    folder: Path
    """Logs and data."""

    def __str__(self) -> str:
        lines = [f"{self.faults} faults, {self.copied} records copied, {self.seconds:.0f} s"]
        lines += [f"restarted: {each}" for each in self.restarted_copiers]
        lines += [f"PROBLEM: {each}" for each in self.problems]
        if self.folder.exists():
            lines.append(f"logs and data are in {self.folder}")
        return "\n".join(lines)


def run_chaos(
    seed: int,
    faults: int,
    *,
    say: Callable[[str], None],
    clients: tuple[str, ...] = CLIENTS,
    keep: bool = False,
) -> Report:
    """Runs a schedule and audits the result; with `keep` its folder is never removed."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fencepost-chaos-"))
    problems: list[str] = []
    with ClusterProcess(folder / "data", options=OPTIONS) as cluster:
        workload = Workload(cluster.bootstrap_servers, seed=seed, clients=clients)
        carried_out = Faults(cluster, workload, say)
        try:
            carried_out.run(make_schedule(seed, faults, copiers=len(workload.copiers)))
            workload.finish(FINISH_SECONDS)
            problems += workload.problems
            problems += audit_cluster(cluster.bootstrap_servers, workload)
        except (AssertionError, FencepostError, OSError) as problem:
            problems.append(f"{type(problem).__name__}: {problem}")
        finally:
            workload.close()
            problems += audit.audit_log(cluster.log.splitlines())
            (folder / "brokers.log").write_text(cluster.log)
            workload.save_output(folder)
        if not problems:
            status = cluster.stop()
            problems += [f"the parent ended with {status}"] if status else []
    report = Report(
        problems,
        carried_out.count,
        len(workload.reader.seen),
        workload.stuck,
        time.monotonic() - began,
        folder,
    )
    if not problems and not keep:
        shutil.rmtree(folder)
    return report


def audit_cluster(servers: str, workload: Workload) -> list[str]:
    """Compares what is in the logs with what exactly-once means."""
    with connect(servers) as client:
        problems = _settled(client, workload)
        source = read_all(client, SOURCE, workload.source_partitions)
        after = [
            Seen(index, record.offset, decode_copy(record.value))
            for index, records in read_all(client, COPIES, COPY_PARTITIONS).items()
            for record in records
        ]
        offsets = {index: [each.offset for each in found] for index, found in source.items()}
        found = {index: [each.value.decode() for each in rows] for index, rows in source.items()}
        problems += audit.audit_copies(offsets, after)
        problems += audit.audit_order(after)
        problems += audit.audit_source(workload.feeder.fed, found)
        problems += audit.audit_reader(workload.reader.seen)
        problems += audit.audit_views(workload.reader.seen, after)
        problems += audit.audit_offsets(_committed(client, workload), offsets, after)
        history = list(_history(client))
        problems += audit.audit_epochs((name, pid, epoch) for name, pid, epoch in history)
        owners = [(producer_id, name) for name, producer_id, _ in history]
        problems += audit.audit_producer_ids([*owners, *_writers(client, workload)])
    return problems


def _settled(client: Cluster, workload: Workload) -> list[str]:
    """Problems with open transactions, after they had time to end."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        listed = {each.transactional_id: each.state for each in client.list_transactions()}
        places = _places(client)
        opened = [
            OpenTransaction(str(place), f"{each.producer_id} at epoch {each.producer_epoch}")
            for place, producers in client.describe_producers(places).items()
            for each in producers
            if each.current_txn_start_offset >= 0
        ]
        times = dict.fromkeys(places, LATEST)
        stable = client.list_offsets(times, isolation="read_committed")
        ends = client.list_offsets(times, isolation="read_uncommitted")
        positions = {str(place): (stable[place].offset, ends[place].offset) for place in places}
        problems = audit.audit_transactions(listed, opened, positions)
        missing = {group_of(each.name) for each in workload.copiers} - listed.keys()
        problems += [f"no coordinator knows {name}" for name in sorted(missing)]
        if not problems or time.monotonic() > deadline:
            return problems
        time.sleep(0.2)


def _places(client: Cluster) -> list[TopicPartition]:
    topics = client.metadata([SOURCE, COPIES, CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC])
    return [
        TopicPartition(name, each.index)
        for name, topic in topics.topics.items()
        for each in topic.partitions
    ]


def _committed(client: Cluster, workload: Workload) -> dict[int, int]:
    return {
        place.partition: found.offset
        for each in workload.copiers
        for place, found in client.offset_fetch(
            group_of(each.name), [TopicPartition(SOURCE, index) for index in each.partitions]
        ).items()
    }


def _history(client: Cluster) -> Iterator[tuple[str, int, int]]:
    """Every record of `__transaction_state`: transactional id, producer id, epoch."""
    topic = client.metadata([TRANSACTION_STATE_TOPIC]).topics[TRANSACTION_STATE_TOPIC]
    for each in topic.partitions:
        place = TopicPartition(TRANSACTION_STATE_TOPIC, each.index)
        for record in client.records(place, isolation="read_uncommitted"):
            if record.value is not None and record.key is not None:
                name, value = decode_key(record.key), decode_value(record.value)
                assert name is not None, "the topic has no other records"
                assert value is not None, "the topic has no other records"
                yield name, value.producer_id, value.producer_epoch


def _writers(client: Cluster, workload: Workload) -> Iterator[tuple[int, str]]:
    """The producer id of every batch, and who wrote it."""
    partitions = {SOURCE: workload.source_partitions, COPIES: COPY_PARTITIONS}
    for place in (
        TopicPartition(name, n) for name, count in partitions.items() for n in range(count)
    ):
        end = client.list_offsets({place: LATEST}, isolation="read_uncommitted")[place].offset
        position = 0
        while position < end:
            fetched = client.fetch({place: position}, isolation="read_uncommitted")[place]
            for batch in fetched.batches:
                if batch.is_control or batch.producer_id == NO_PRODUCER_ID:
                    continue
                if place.topic == SOURCE:
                    yield batch.producer_id, "feeder"
                else:
                    value = open_batch(batch)[0].value
                    assert value is not None
                    yield batch.producer_id, group_of(decode_copy(value).copier)
            position = fetched.next_offset
