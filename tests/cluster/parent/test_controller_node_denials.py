"""The controller decides forwarded requests as if the client were connected to it."""

from __future__ import annotations

import logging

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_topics import CreatableTopic, CreateTopicsRequest
from tests.broker.security.secured import ALICE, SETTINGS
from tests.cluster.parent.parent_stage import ParentStage


def test_the_audit_log_names_the_listener_at_which_the_broker_was_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="fencepost.audit")
    stage = ParentStage(settings=SETTINGS).start()
    wanted = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)
    reply = stage.call(ApiKey.CREATE_TOPICS, 7, request, at=2, principal=ALICE, listener="OUTSIDE")
    assert reply.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    (line,) = (record for record in caplog.records if record.name == "fencepost.audit")
    fields = vars(line)
    assert (fields["principal"], fields["listener"]) == (ALICE, "OUTSIDE")
    stage.stop()
