"""What the ledger store writes into a batch's transaction, and reads after any outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition, topic_id_text
from fencepost.client.admin import NewTopic
from fencepost.client.failures import (
    ProducerFenced,
    RetriesExhausted,
    UnknownTopicOrPartition,
    refusal,
)
from fencepost.client.groups import CommittedOffset
from fencepost.client.options import read_options
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger import writer as writer_module
from fencepost.spark.ledger.admin import forget
from fencepost.spark.ledger.entry import LedgerEntry, LedgerView, group_of
from fencepost.spark.ledger.rule import NO_OVERRIDES, Batch, Overrides, Verdict
from fencepost.spark.ledger.sources import SourceUse
from fencepost.spark.ledger.store import LedgerStore
from fencepost.spark.ledger.topic import LEDGER_TOPIC, PARTITIONS, SEGMENT_BYTES, ensure_topic
from fencepost.spark.ledger.writer import append_record, write_entry
from tests.spark.ledger.ledgers import OURS, FakeMicroBatch, LedgerCluster, embedded_ledger
from tests.spark.ledger.ledgers import enter as enter_in

SOURCE = TopicPartition("source", 0)
ENDS = '{"source": {"0": 42}}'


@pytest.fixture(scope="module")
def home() -> Iterator[LedgerCluster]:
    with embedded_ledger() as found:
        found.cluster.create_topics([NewTopic(name, 1, 1) for name in ("source", "out")])
        yield found


def enter(
    home: LedgerCluster,
    name: str,
    batch_id: int = 0,
    before: LedgerView | None = None,
    *,
    query_id: str = "q",
    ends: str = ENDS,
    commit: bool | None = True,
    version: int = 2,
    **how: Any,
) -> LedgerView:
    """Writes one batch with a new driver; commit=None leaves its transaction open."""
    store = home.store(name)
    identity = home.begin(name, version)
    known = store.peek() if before is None else before
    micro_batch = FakeMicroBatch(query_id, batch_id, ends)
    view = enter_in(store, identity, micro_batch, known, **how)
    if commit is not None:
        home.cluster.end_txn(identity, commit=commit)
    return view


def committed(home: LedgerCluster, name: str) -> dict[TopicPartition, CommittedOffset]:
    return home.cluster.offset_fetch(group_of(name))


@pytest.mark.parametrize("version", [1, 2], ids=["tv1", "tv2"])
def test_the_entry_and_the_source_offsets_are_committed_together_or_not_at_all(
    home: LedgerCluster, version: int
) -> None:
    name = f"together-{version}"
    view = enter(home, name, version=version, is_stateful=False, parts=("one",))
    assert home.view(name) == view
    entry = view.entry
    assert entry is not None
    assert entry.sources == {SOURCE: 42}
    topic = home.cluster.metadata(["source"]).topics["source"]
    assert entry.topic_ids == {"source": topic_id_text(topic.topic_id)}
    assert (entry.sources_committed, entry.is_stateful, entry.parts) == (True, False, ("one",))
    assert committed(home, name) == {SOURCE: CommittedOffset(42)}
    enter(home, name, 1, ends='{"source": {"0": 50}}', commit=False, version=version)
    assert home.view(name) == view
    assert committed(home, name) == {SOURCE: CommittedOffset(42)}


def test_source_offsets_are_in_the_entry_even_if_not_committed(home: LedgerCluster) -> None:
    view = enter(home, "uncommitted", sources=SourceUse(are_ours=True, commits=False))
    assert view.entry is not None
    assert (view.entry.sources, view.entry.sources_committed) == ({SOURCE: 42}, False)
    assert view.entry.topic_ids
    assert committed(home, "uncommitted") == {}


def test_a_source_on_another_cluster_has_topic_ids_only_if_it_reports_them(
    home: LedgerCluster,
) -> None:
    """A topic of the same name in this cluster is another one."""
    view = enter(home, "foreign", sources=SourceUse())
    assert view.entry is not None
    assert (view.entry.sources, view.entry.topic_ids) == ({SOURCE: 42}, {})
    text = topic_id_text(bytes(range(16)))
    view = enter(
        home, "foreign", 1, ends=f'{{"@id:source:{text}": {{}}, "source": {{"0": 42}}}}',
        sources=SourceUse(),
    )  # fmt: skip
    assert view.entry is not None
    assert view.entry.topic_ids == {"source": text}


def test_offsets_of_a_missing_topic_are_in_the_entry_but_not_committed(home: LedgerCluster) -> None:
    view = enter(home, "missing", ends='{"@gone:lost::0=7": {}, "source": {"0": 42}}')
    assert view.entry is not None
    assert view.entry.sources == {SOURCE: 42, TopicPartition("lost", 0): 7}
    assert committed(home, "missing") == {SOURCE: CommittedOffset(42)}


def test_a_query_that_reads_no_topics_has_an_entry_without_sources(home: LedgerCluster) -> None:
    view = enter(home, "files", ends='{"logOffset": 3}')
    assert view.entry is not None
    assert view.entry.sources is None
    assert home.view("files") == view


def test_an_empty_batch_is_recorded_like_any_other(home: LedgerCluster) -> None:
    enter(home, "empty", 0)
    enter(home, "empty", 1)
    assert home.batch_in("empty") == 1


def recreate(home: LedgerCluster, topic: str) -> None:
    home.cluster.delete_topics([topic])
    home.cluster.create_topics([NewTopic(topic, 1, 1)])


def ends_in(home: LedgerCluster, topic: str, offset: int) -> str:
    """End offsets of our own source, with the id of the topic."""
    text = topic_id_text(home.cluster.metadata([topic]).topics[topic].topic_id)
    return f'{{"@id:{topic}:{text}": {{}}, "{topic}": {{"0": {offset}}}, "source": {{"0": 42}}}}'


def test_offsets_of_a_recreated_topic_are_not_committed(
    home: LedgerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """On the new topic, `startingOffsets=committed` would skip records."""
    home.cluster.create_topics([NewTopic("recreated-1", 1, 1)])
    planned = ends_in(home, "recreated-1", 7)
    recreate(home, "recreated-1")
    view = enter(home, "recreated-1", 0, ends=planned)
    assert committed(home, "recreated-1") == {SOURCE: CommittedOffset(42)}
    assert "deleted and created again" in caplog.text
    assert view.entry is not None
    assert view.entry.topic_ids["recreated-1"] in planned, "the entry names the topic that was read"
    enter(home, "recreated-1", 1, ends=ends_in(home, "recreated-1", 3))
    assert committed(home, "recreated-1")[TopicPartition("recreated-1", 0)] == CommittedOffset(3)


def test_a_source_without_topic_ids_is_compared_with_the_previous_entry(
    home: LedgerCluster,
) -> None:
    home.cluster.create_topics([NewTopic("silent", 1, 1)])
    place = TopicPartition("silent", 0)
    enter(home, "silent", 0, ends='{"silent": {"0": 7}}')
    assert committed(home, "silent") == {place: CommittedOffset(7)}
    recreate(home, "silent")
    for batch_id, expected in ((1, {}), (2, {place: CommittedOffset(9)})):
        enter(home, "silent", batch_id, ends='{"silent": {"0": 9}}')
        assert committed(home, "silent") == expected


@pytest.mark.parametrize("is_back", [True, False], ids=["created again", "gone"])
def test_offsets_of_a_source_topic_that_was_deleted_meanwhile_are_left_out(
    home: LedgerCluster, is_back: bool
) -> None:
    name = f"beside-{is_back}"
    home.cluster.create_topics([NewTopic(name, 1, 1)])
    planned = FakeMicroBatch("q", 0, ends_in(home, name, 7))
    home.cluster.delete_topics([name])
    if is_back:
        home.cluster.create_topics([NewTopic(name, 1, 1)])
    store, producer = home.store(name), home.producer(name)
    identity = producer.lend()
    view = enter_in(store, identity, planned, LedgerView())
    home.cluster.end_txn(identity, commit=True)
    assert committed(home, name) == {SOURCE: CommittedOffset(42)}
    assert home.view(name) == view


def test_a_record_stays_in_its_partition_if_partitions_are_added() -> None:
    with embedded_ledger() as home:
        home.create(1)
        for name in ("a", "b", "c"):
            enter(home, name, ends="")
        home.add_partitions(5)
        for name in ("a", "b", "c"):
            view = enter(home, name, 1, ends="")
            assert view.place == TopicPartition(LEDGER_TOPIC, 0)
            assert home.batch_in(name) == 1


# Reading.


@pytest.mark.parametrize("ending", [True, False, None], ids=["committed", "aborted", "open"])
def test_a_successors_open_transaction_is_not_mistaken_for_a_committed_one(
    home: LedgerCluster, ending: bool | None
) -> None:
    """A driver suspended between fence and read would lose the batch as already written."""
    name = f"suspended-{ending}"
    enter(home, name, 0)
    suspended = home.producer(name)
    enter(home, name, 1, commit=ending)
    store = home.store(name)
    if ending is None:
        with pytest.raises(SinkRefused, match="was taken over by another query"):
            store.read(suspended)
    else:
        entry = store.read(suspended).entry
        assert entry is not None
        assert entry.batch_id == (1 if ending else 0)
    assert home.read(name).entry == home.view(name).entry


def test_a_successor_that_has_sent_only_its_offsets_stops_the_write_not_the_read(
    home: LedgerCluster,
) -> None:
    view = enter(home, "offsets-only", 0)
    suspended, successor = home.producer("offsets-only"), home.begin("offsets-only")
    offsets = {SOURCE: CommittedOffset(50)}
    home.cluster.txn_offset_commit(successor, group_of("offsets-only"), offsets)
    store = home.store("offsets-only")
    assert store.read(suspended) == view
    with pytest.raises(ProducerFenced):
        write_entry(store, suspended.lend(), LedgerEntry("q", 1), view)
    home.cluster.end_txn(successor, commit=False)
    assert home.view("offsets-only") == view


class WithoutMarker(LedgerStore):
    """Reads a partition from which the marker of a committed record was compacted away."""

    def _read(self, *, fenced: bool) -> LedgerView:
        assert fenced
        entry = LedgerEntry("q", 5)
        return LedgerView(TopicPartition(self.topic, 0), entry, undecided=(entry,))


def test_a_record_without_its_marker_counts_as_committed_for_the_owner_of_the_id(
    home: LedgerCluster,
) -> None:
    producer = home.producer("no-marker")
    store = WithoutMarker(home.cluster.options, "no-marker")
    view = store.read(producer)
    assert (view.entry, view.is_settled) == (LedgerEntry("q", 5), True)
    home.producer("no-marker")
    with pytest.raises(SinkRefused, match="was taken over by another query"):
        store.read(producer)


def test_an_unknown_topic_is_not_mistaken_for_an_empty_ledger() -> None:
    """Otherwise the first batch, which Spark repeats after a crash, would be written again."""
    with embedded_ledger() as home:
        enter(home, "id", 0, ends="")
        store, producer = home.store("id"), home.producer("id")
        home.delete()
        with pytest.raises(SinkRefused, match="which holds the ledger, was just deleted"):
            store.peek()
        with pytest.raises(SinkRefused, match="which holds the ledger, was just deleted"):
            store.read(producer)


def test_partitions_missing_from_stale_metadata_are_read(home: LedgerCluster) -> None:
    """Its metadata may have fewer partitions than at the start."""
    enter(home, "few", 0, ends="")
    store = home.store("few")
    genuine = store.cluster.metadata

    def forgetful(topics: Any) -> Any:
        view = genuine(topics)
        found = view.topics[LEDGER_TOPIC]
        return replace(view, topics={LEDGER_TOPIC: replace(found, partitions=found.partitions[:1])})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.cluster, "metadata", forgetful)
        entry = store.peek().entry
    assert entry is not None
    assert entry.batch_id == 0


class Outage:
    """Makes some partitions of the ledger topic leaderless."""

    def __init__(
        self, patch: pytest.MonkeyPatch, store: LedgerStore, is_offline: Callable[[int], bool]
    ) -> None:
        cluster = store.cluster
        metadata, list_offsets = cluster.metadata, cluster.list_offsets

        def leaderless(topics: Any) -> Any:
            view = metadata(topics)
            found = view.topics[LEDGER_TOPIC]
            partitions = tuple(
                replace(p, leader=-1) if is_offline(p.index) else p for p in found.partitions
            )
            return replace(view, topics={LEDGER_TOPIC: replace(found, partitions=partitions)})

        def deaf(times: Any, **how: Any) -> Any:
            if any(is_offline(place.partition) for place in times):
                raise RetriesExhausted("ListOffsets", 10, "LEADER_NOT_AVAILABLE")
            return list_offsets(times, **how)

        patch.setattr(cluster, "metadata", leaderless)
        patch.setattr(cluster, "list_offsets", deaf)


def test_an_offline_partition_stops_only_queries_whose_record_may_be_in_it(
    home: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = enter(home, "elsewhere", 0, ends="")
    store, producer = home.store("elsewhere"), home.producer("elsewhere")
    place = view.place
    assert place is not None
    with monkeypatch.context() as patch:
        Outage(patch, store, lambda index: index != place.partition)
        assert store.peek() == store.read(producer) == view
    with monkeypatch.context() as patch:
        Outage(patch, store, lambda index: index == place.partition)
        with pytest.raises(RetriesExhausted):
            store.peek()
        with pytest.raises(RetriesExhausted):
            store.read(producer)


def test_a_forgotten_query_may_have_its_record_in_an_offline_partition(
    home: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records left in the other partition do not count."""
    view = enter(home, "forgotten", 0, ends="")
    place = view.place
    assert place is not None
    forget(home.cluster, "forgotten")
    store = home.store("forgotten")
    Outage(monkeypatch, store, lambda index: index != place.partition)
    with pytest.raises(RetriesExhausted):
        store.peek()


def test_a_record_stays_in_its_partition_if_a_broker_briefly_forgets_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise an id would have two records, and an offline partition could hide the newer."""
    with embedded_ledger() as home:
        home.create(1)
        view = enter(home, "id", 0, ends="")
        home.add_partitions(7)
        store, genuine = home.store("id"), append_record
        calls: list[TopicPartition] = []

        def forgetful(cluster: Any, identity: Any, place: TopicPartition, value: Any) -> None:
            calls.append(place)
            if len(calls) == 1:
                raise UnknownTopicOrPartition("Produce", 3)
            genuine(cluster, identity, place, value)

        monkeypatch.setattr(writer_module, "append_record", forgetful)
        identity = home.begin("id")
        enter_in(store, identity, FakeMicroBatch("q", 1), view)
        assert calls == [view.place, view.place]


# The topic.


def test_the_sink_creates_a_missing_ledger_topic() -> None:
    with embedded_ledger() as home:
        home.store("id")
        view = home.cluster.metadata([LEDGER_TOPIC]).topics[LEDGER_TOPIC]
        assert len(view.partitions) == PARTITIONS
        other = LedgerStore(home.cluster.options, "id", "a-teams-own")
        other.prepare()
        other.prepare()
        assert home.cluster.find_topic("a-teams-own") is not None


def test_sinks_that_start_at_the_same_time_share_the_ledger_topic() -> None:
    with embedded_ledger() as home:
        servers = str(home.cluster.options.bootstrap[0])
        options = [read_options(servers, {"client.id": f"c{n}"}) for n in range(8)]
        stores = [LedgerStore(each, f"id-{n}") for n, each in enumerate(options)]
        with ThreadPoolExecutor(len(stores)) as pool:
            list(pool.map(LedgerStore.prepare, stores))
        view = home.cluster.metadata([LEDGER_TOPIC]).topics[LEDGER_TOPIC]
        assert len(view.partitions) == PARTITIONS
        for each in options:
            cluster_of(each).close()


def test_a_broker_that_does_not_know_the_new_topic_yet_is_retried(
    home: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, refusals = home.cluster.describe_configs, [1, 2, 3]

    def late(*arguments: Any) -> Any:
        if refusals:
            refusals.pop()
            raise refusal("DescribeConfigs", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return genuine(*arguments)

    monkeypatch.setattr(home.cluster, "describe_configs", late)
    ensure_topic(home.cluster, LEDGER_TOPIC)
    assert not refusals
    monkeypatch.setattr("fencepost.spark.ledger.topic.PROPAGATION_SECONDS", 0.0)
    refusals += [1]
    with pytest.raises(UnknownTopicOrPartition):
        ensure_topic(home.cluster, LEDGER_TOPIC)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"cleanup.policy": "delete"}, "has cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, "must be exactly compact"),
        ({"segment.bytes": str(1024**3)}, f"set it to {SEGMENT_BYTES}"),
    ],
)
def test_a_topic_with_unsafe_settings_is_refused_as_ledger(
    settings: dict[str, str], named: str
) -> None:
    with embedded_ledger() as home:
        home.create(1, **settings)
        with pytest.raises(SinkRefused, match=named):
            home.store("id")


class Guarded:
    """A cluster in which this user may not create topics, or describe settings."""

    def __init__(self, home: LedgerCluster, **codes: ErrorCode) -> None:
        self._cluster = home.cluster
        self._codes = codes
        self.options = home.cluster.options

    def __getattr__(self, name: str) -> Any:
        if name in self._codes:
            code = self._codes[name]

            def refuse(*_: object, **__: object) -> None:
                raise refusal(name, code)

            return refuse
        return getattr(self._cluster, name)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Any:
    def guard(home: LedgerCluster, **codes: ErrorCode) -> LedgerStore:
        fake = Guarded(home, **codes)
        monkeypatch.setattr("fencepost.spark.ledger.store.cluster_of", lambda options: fake)
        return LedgerStore(home.cluster.options, "id", "guarded")

    return guard


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    ],
)
def test_without_permission_to_create_the_topic_the_error_gives_the_command(
    home: LedgerCluster, guarded: Any, code: ErrorCode
) -> None:
    store = guarded(home, create_topics=code)
    with pytest.raises(SinkRefused, match="`fencepost ledger create --topic guarded`"):
        store.prepare()
    assert home.cluster.find_topic("guarded") is None


def test_without_permission_to_see_the_topic_the_error_says_what_to_grant(
    home: LedgerCluster, guarded: Any
) -> None:
    store = guarded(home, find_topic=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(SinkRefused, match="grant READ, WRITE and DESCRIBE"):
        store.prepare()


def test_without_permission_to_read_settings_a_warning_is_logged(
    home: LedgerCluster, guarded: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = guarded(home, describe_configs=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    store.prepare()
    assert "grant this user DESCRIBE_CONFIGS" in caplog.text
    home.cluster.delete_topics(["guarded"])


def test_a_ledger_topic_deleted_under_a_running_query_is_created_again() -> None:
    with embedded_ledger() as home:
        store = home.store("id")
        micro_batch = FakeMicroBatch("q", 0)
        identity = home.begin("id")
        view = enter_in(store, identity, micro_batch, LedgerView(), sources=SourceUse())
        identity = home.cluster.end_txn(identity, commit=True)
        home.delete()
        micro_batch = FakeMicroBatch("q", 1)
        view = enter_in(store, identity, micro_batch, view, sources=SourceUse())
        home.cluster.end_txn(identity, commit=True)
        assert home.view("id") == view


# Taking over.


def test_a_query_continues_where_the_entry_ends_not_where_the_group_offsets_are(
    home: LedgerCluster,
) -> None:
    """A run without commit_source_offsets in between leaves the group's offsets behind."""
    enter(home, "gone", 0, query_id="p")
    enter(
        home, "gone", 1, query_id="p",
        ends='{"source": {"0": 60}}', sources=SourceUse(are_ours=True, commits=False),
    )  # fmt: skip
    assert committed(home, "gone") == {SOURCE: CommittedOffset(42)}
    store = home.store("gone")
    view = store.peek()

    def decide(
        start: int, overrides: Overrides = NO_OVERRIDES, sources: SourceUse = OURS
    ) -> Verdict:
        return store.decide(view, Batch("q", 0, "", {SOURCE: start}), sources, overrides).verdict

    assert decide(42) is Verdict.REFUSE
    assert decide(42, Overrides(take_over="p")) is Verdict.REFUSE
    assert decide(60) is Verdict.TAKE_OVER
    # On another cluster the same numbers mean nothing.
    assert decide(60, sources=SourceUse()) is Verdict.REFUSE
    assert decide(60, Overrides(take_over="p"), sources=SourceUse()) is Verdict.TAKE_OVER


def test_a_recreated_topic_is_not_continued(home: LedgerCluster) -> None:
    home.cluster.create_topics([NewTopic("again", 1, 1)])
    place = TopicPartition("again", 0)
    enter(home, "recreated", 0, query_id="p", ends='{"again": {"0": 3}}')
    home.cluster.delete_topics(["again"])
    home.cluster.create_topics([NewTopic("again", 1, 1)])
    store = home.store("recreated")
    decision = store.decide(store.peek(), Batch("q", 0, "", {place: 3}), OURS)
    assert decision.verdict is Verdict.REFUSE
    assert "was deleted and created again" in decision.reason


def test_a_partition_added_since_must_begin_at_its_first_offset() -> None:
    with embedded_ledger() as home:
        home.cluster.create_topics([NewTopic("source", 2, 1)])
        enter(home, "id", 0, query_id="p")
        store = home.store("id")
        new = TopicPartition("source", 1)
        view = store.peek()
        begins = {SOURCE: 42, new: 0}
        assert store.decide(view, Batch("q", 0, "", begins), OURS).verdict is Verdict.TAKE_OVER
        begins = {SOURCE: 42, new: 1}
        assert store.decide(view, Batch("q", 0, "", begins), OURS).verdict is Verdict.REFUSE
