"""The size of batches for topics that accept only small ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.client.failures import refusal
from fencepost.spark.failures import BatchTooLarge, RowRefused
from fencepost.spark.sentences import find_too_large
from fencepost.spark.settings import read_settings
from fencepost.spark.ways import limits
from fencepost.spark.ways.limits import TopicLimits


class ConfiguredCluster:
    """A cluster whose topics have these settings."""

    def __init__(self, **values: int) -> None:
        self.values = values
        self.asked = 0

    def describe_configs(self, resource: Any, topic: str, names: Any) -> dict[str, Any]:
        self.asked += 1
        if topic not in self.values:
            raise refusal("DescribeConfigs", 29)
        return {"max.message.bytes": SimpleNamespace(value=str(self.values[topic]))}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ConfiguredCluster:
    fake = ConfiguredCluster(small=5_000)
    monkeypatch.setattr(limits, "cluster_of", lambda options: fake)
    return fake


def limits_with(**options: Any) -> TopicLimits:
    return TopicLimits(
        read_settings("h:1", {f"kafka.{k.replace('_', '.')}": v for k, v in options.items()})
    )


def test_batches_fit_max_message_bytes_which_is_requested_once(cluster: ConfiguredCluster) -> None:
    found = limits_with()
    assert [found.batch_bytes("small") for _ in range(3)] == [5_000 - 61] * 3
    assert cluster.asked == 1
    assert found.batch_bytes("secret") == found.batch_bytes(None) == 1_000_000
    assert limits_with(batch_size=300).batch_bytes("small") == 300
    # Compression may enlarge rows that it cannot compress.
    assert limits_with(compression_type="lz4").batch_bytes("small") < 5_000 - 61


def test_without_permission_the_limit_is_found_by_halving(cluster: ConfiguredCluster) -> None:
    found = limits_with()
    sizes = []
    size, takes = 1_000_000, 1_000
    while size > takes:
        found.learn(BatchTooLarge("secret", 10, size))
        size = found.batch_bytes("secret") + 61
        sizes.append(size)
    assert sizes[0] == 500_000
    assert takes / 2 < size <= takes
    assert found.batch_bytes(None) == size - 61
    assert found.batch_bytes("small") == 5_000 - 61


def test_a_lowered_limit_is_requested_again(cluster: ConfiguredCluster) -> None:
    found = limits_with()
    assert found.batch_bytes("small") == 5_000 - 61
    cluster.values["small"] = 2_000
    found.learn(BatchTooLarge("small", 10, 4_900))
    assert found.batch_bytes("small") == 2_000 - 61
    # A refused batch must become smaller whatever the setting, or the sink would retry forever.
    before = found.batch_bytes("small")
    for _ in range(20):
        found.learn(BatchTooLarge("small", 2, 2_100))
        assert found.batch_bytes("small") < before or before == 1
        before = found.batch_bytes("small")
    assert before == 1


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        (
            "small",
            "'small' does not accept .* 9000 bytes: .* max.message.bytes of .* which is 5000",
        ),
        ("secret", r"9000 bytes: it is larger than max.message.bytes of the topic\. Raise"),
    ],
)
def test_a_single_record_above_the_limit_is_refused(
    cluster: ConfiguredCluster, topic: str, words: str
) -> None:
    with pytest.raises(RowRefused, match=words):
        limits_with().learn(BatchTooLarge(topic, 1, 9_000))


def test_a_batch_too_large_error_is_extracted_from_sparks_error() -> None:
    problem = BatchTooLarge("a.topic-1", 12, 3456)
    text = f"Traceback\nfencepost.spark.failures.BatchTooLarge: {problem}\n\tat org.apache"
    found = find_too_large(text)
    assert found is not None
    assert (found.topic, found.records, found.size_bytes) == ("a.topic-1", 12, 3456)
    assert find_too_large("Traceback") is None
