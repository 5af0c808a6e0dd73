"""The checkpoint of a broker: round trips, damage, the newest entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencepost.records.broker_checkpoint import (
    BrokerCheckpoint,
    PartitionEntry,
    TopicEntries,
    encode_broker_checkpoint,
    encode_topic,
    newest,
)

offsets = st.integers(0, 2**63 - 1)
entries = st.builds(
    PartitionEntry, st.integers(-1, 2**31 - 1), offsets, offsets, offsets, st.booleans()
)
topics = st.dictionaries(
    st.binary(min_size=16, max_size=16),
    st.builds(
        TopicEntries,
        st.text("abcß._-", min_size=1, max_size=249),
        st.dictionaries(st.integers(0, 2**31 - 1), entries, max_size=5),
    ),
    max_size=4,
)


def encoded(content: dict[bytes, TopicEntries]) -> bytes:
    return encode_broker_checkpoint(encode_topic(*each) for each in content.items())


@given(topics)
def test_what_is_written_is_read(content: dict[bytes, TopicEntries]) -> None:
    found = BrokerCheckpoint(encoded(content))
    assert found.problems == []
    assert found.is_readable
    assert dict(found.topics()) == content
    for topic_id, topic in content.items():
        for index, entry in topic.partitions.items():
            assert found.entry(topic_id, index) == entry
        assert found.entry(topic_id, -1) is None
    assert found.entry(b"no topic has this", 0) is None


@given(topics, st.data())
def test_damage_is_reported_and_nothing_wrong_is_believed(
    content: dict[bytes, TopicEntries], data: st.DataObject
) -> None:
    whole = bytearray(encoded(content))
    if data.draw(st.booleans()):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    found = BrokerCheckpoint(bytes(whole))
    assert found.problems
    for topic_id, topic in found.topics():
        assert content[topic_id] == topic


def test_damage_in_one_topic_leaves_the_others() -> None:
    one = TopicEntries("one", {0: PartitionEntry(1, 2, 3, 4, is_clean=True)})
    two = TopicEntries("two", {5: PartitionEntry(6, 7, 8, 9, is_clean=False)})
    data = bytearray(encoded({b"1" * 16: one, b"2" * 16: two}))
    data[data.index(b"one")] ^= 1
    found = BrokerCheckpoint(bytes(data))
    assert found.problems == ["topic 1 of 2 is damaged"]
    assert dict(found.topics()) == {b"2" * 16: two}


def test_an_absent_file_is_no_problem_and_an_empty_one_is() -> None:
    assert BrokerCheckpoint().problems == []
    assert BrokerCheckpoint(b"").problems == ["its header is damaged"]


@given(st.lists(st.none() | entries, max_size=5))
def test_the_highest_epoch_counts_with_the_highest_log_start(
    found: list[PartitionEntry | None],
) -> None:
    there = [entry for entry in found if entry is not None]
    best = newest(found)
    if not there:
        assert best is None
        return
    assert best is not None
    last = max(enumerate(there), key=lambda each: (each[1].leader_epoch, each[0]))[1]
    assert best == last._replace(log_start_offset=max(e.log_start_offset for e in there))
