"""The audit log: one line for each denial and each change, which clients cannot forge or flood."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from fencepost.broker.event_log import LINES_PER_SECOND
from fencepost.broker.log_format import JsonLines
from fencepost.broker.security.audit import LONGEST, printable
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.broker.security.logging_in import SCRAM, setting, upsertion
from tests.broker.security.secured import ALICE, Secured

ALTER_USERS = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
READ_T = ("READ", "TOPIC", "t")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, logger="fencepost.audit")

    def found() -> list[dict[str, Any]]:
        formatter = JsonLines()
        records = [record for record in caplog.records if record.name == "fencepost.audit"]
        caplog.clear()
        return [json.loads(formatter.format(record)) for record in records]

    return found


def ask(stage: Stage, *names: str, principal: str = ALICE) -> None:
    topics = [MetadataRequestTopic(name=name) for name in names]
    line = stage.connect(principal)  # type: ignore[call-arg]
    line.call(ApiKey.METADATA, 9, MetadataRequest(topics=topics, allow_auto_topic_creation=False))


def test_a_denial_is_one_line_with_who_what_and_why(lines: Any) -> None:
    with Secured() as stage:
        stage.deny(("DESCRIBE", "TOPIC", "t"))
        lines()
        ask(stage, "t")
        (line,) = lines()
    assert line["event"] == "authorization_denied"
    assert (line["principal"], line["host"], line["api"]) == (ALICE, "127.0.0.1", "Metadata")
    assert (line["operation"], line["resource_type"], line["resource_name"]) == (
        "DESCRIBE",
        "TOPIC",
        "t",
    )
    assert line["rule"] == f"DENY {ALICE} DESCRIBE on TOPIC:t"
    assert line["message"] == (
        f"{ALICE} at 127.0.0.1 was denied DESCRIBE on TOPIC:t (Metadata): "
        f"denied: DENY {ALICE} DESCRIBE on TOPIC:t"
    )


def test_what_is_left_out_silently_is_not_logged(lines: Any) -> None:
    with Secured() as stage:
        create_topic(stage, "t")
        lines()
        line = stage.connect(ALICE)
        assert line.call(ApiKey.METADATA, 9, MetadataRequest(topics=None)).topics == []
        assert lines() == []


def test_changes_of_rights_are_logged_with_who_made_them(lines: Any) -> None:
    with Secured() as stage:
        stage.allow(READ_T)
        stage.forget()
        created, deleted = lines()
    assert (created["event"], deleted["event"]) == ("acl_created", "acl_deleted")
    for line in (created, deleted):
        assert line["principal"] == "User:admin"
        assert line["rule"] == f"ALLOW {ALICE} READ on TOPIC:t"


def test_changes_of_users_are_logged_without_what_they_are(lines: Any) -> None:
    with Secured() as stage:
        lines()
        both = [upsertion("bob", "b"), upsertion("bob", "b", "SCRAM-SHA-512")]
        removals = [("carol", SCRAM)]
        stage.call(ALTER_USERS, 0, setting([*both, upsertion("carol", "c")]))
        stage.call(ALTER_USERS, 0, setting([upsertion("dave", "d", iterations=1)], removals))
        set_bob, set_carol, removed = lines()
    assert set_bob["message"] == (
        "User:admin at 127.0.0.1 set the password of user bob for SCRAM-SHA-256, SCRAM-SHA-512"
    )
    assert (set_bob["event"], set_carol["user"]) == ("user_changed", "carol")
    assert (removed["event"], removed["user"]) == ("user_removed", "carol")
    assert (removed["principal"], removed["mechanisms"]) == ("User:admin", [SCRAM])


def test_nobody_writes_a_line_of_their_own(lines: Any) -> None:
    with Secured() as stage:
        ask(stage, "t\n2026-01-01 INFO fencepost.audit: all is well", "x" * 30_000)
        first, second = lines()
    assert "\n" not in first["message"]
    assert "\\n2026" in first["message"]
    assert len(second["message"]) < 3 * LONGEST
    assert printable("a\x1b[2Jb") == "a\\x1b[2Jb"


def test_a_noisy_client_hides_no_line_of_another(lines: Any) -> None:
    with Secured() as stage:
        ask(stage, *(f"t{number}" for number in range(100)))
        ask(stage, "t", principal="User:bob")
        found = lines()
        assert sum(line["principal"] == ALICE for line in found) == LINES_PER_SECOND
        assert sum(line["principal"] == "User:bob" for line in found) == 1
        stage.advance(1_500)
        (rest,) = lines()
    assert (rest["left_out"], rest["by"]) == (100 - LINES_PER_SECOND, f"{ALICE} at 127.0.0.1")


def test_without_an_authorizer_there_is_no_audit_log(lines: Any) -> None:
    with Stage() as stage:
        create_topic(stage, "t")
        assert lines() == []
