"""Settings, and members of groups, as brokers send them."""

from __future__ import annotations

import struct

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import ResourceType
from fencepost.client.configs import _setting
from fencepost.client.group_admin import _classic_member
from fencepost.wire.compile import encode
from fencepost.wire.forms import consumer_protocol_assignment as assignment_forms
from fencepost.wire.forms.consumer_protocol_subscription import ConsumerProtocolSubscription
from fencepost.wire.forms.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)
from fencepost.wire.forms.describe_groups import DescribedGroupMember


def test_the_value_below_is_in_the_unit_of_the_setting() -> None:
    entry = DescribeConfigsResourceResult(
        name="retention.ms",
        value="5",
        config_source=1,
        synonyms=[
            DescribeConfigsSynonym(name="retention.ms", value="5", source=1),
            DescribeConfigsSynonym(name="log.retention.hours", value="168", source=4),
        ],
    )
    found = _setting(ResourceType.TOPIC, entry)
    assert (found.source, found.is_own, found.below) == ("topic", True, "604800000")


@pytest.mark.parametrize("version", [0, 1, 2, 3, 9])
def test_a_member_of_any_version_is_read(version: int) -> None:
    form = min(version, 3)
    subscription = ConsumerProtocolSubscription(topics=["b", "a"])
    partitions = assignment_forms.TopicPartition(topic="a", partitions=[1, 0])
    assignment = assignment_forms.ConsumerProtocolAssignment(assigned_partitions=[partitions])
    member = DescribedGroupMember(
        member_id="m",
        member_metadata=struct.pack(">h", version) + encode(subscription, form) + b"later fields",
        member_assignment=struct.pack(">h", version) + encode(assignment, form),
    )
    view = _classic_member(member, "consumer")
    assert view.topics == ("a", "b")
    assert view.assigned == (TopicPartition("a", 0), TopicPartition("a", 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x00\x01",
        b"\x00\x03\xff\xff\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\x00\x02\xff\xfe",
    ],
)
def test_a_member_that_sent_something_else_has_no_topics(data: bytes) -> None:
    member = DescribedGroupMember(member_id="m", member_metadata=data, member_assignment=data)
    view = _classic_member(member, "consumer")
    assert (view.topics, view.assigned) == ((), ())
    assert _classic_member(member, "connect").topics == ()
