"""`fencepost config` on an embedded broker."""

from __future__ import annotations

import pytest

from fencepost.cli.commands.config import HIDDEN
from fencepost.client.configs import Setting
from fencepost.client.steps import Steps
from tests.cli.running import Commands


@pytest.fixture
def topic(commands: Commands, name: str) -> str:
    commands.run("topic", "create", name)
    return name


def test_settings_are_set_shown_with_their_source_and_returned_to_the_default(
    commands: Commands, topic: str
) -> None:
    at = ("--topic", topic)
    assert "are defaults" in commands.run("config", "get", *at)
    (row,) = commands.json("config", "set", *at, "retention.bytes=1000")
    assert row == {"name": "retention.bytes", "old": "-1", "new": "1000"}
    (row,) = commands.json("config", "get", *at)
    assert (row["value"], row["source"], row["default"]) == ("1000", "topic", "-1")
    (row,) = commands.json("config", "set", *at, "--unset", "retention.bytes")
    assert (row["old"], row["new"]) == ("1000", "-1")
    assert commands.json("config", "get", *at) == []
    (row,) = commands.json("config", "get", *at, "cleanup.policy")
    assert (row["value"], row["source"]) == ("delete", "default")
    assert len(commands.json("config", "get", *at, "--all")) > 10


def test_the_broker_checks_values_without_a_change(commands: Commands, topic: str) -> None:
    at = ("--topic", topic)
    commands.run("config", "set", *at, "retention.ms=5", "--dry-run")
    assert commands.json("config", "get", *at) == []
    said = commands.refusal("config", "set", *at, "retention.ms=soon", "--dry-run")
    assert "INVALID_CONFIG" in said


def test_all_changes_are_made_or_none(commands: Commands, topic: str) -> None:
    at = ("--topic", topic)
    said = commands.refusal("config", "set", *at, "retention.ms=5", "cleanup.polisy=compact")
    assert "did you mean cleanup.policy?" in said
    assert commands.json("config", "get", *at) == []


def test_a_broker_and_all_brokers_have_settings(commands: Commands) -> None:
    rows = {row["name"]: row for row in commands.json("config", "get", "--broker", "1", "--all")}
    assert rows["transaction.max.timeout.ms"]["value"] == "900000"
    said = commands.refusal("config", "get", "--broker", "7")
    assert "no live broker '7'; its live brokers are 1." in said


def test_a_group_of_fencepost_has_no_settings(commands: Commands, name: str) -> None:
    said = commands.refusal("config", "set", "--group", name, "consumer.session.timeout.ms=50000")
    assert f"Group '{name}' has no setting 'consumer.session.timeout.ms'" in said
    assert commands.json("config", "get", "--group", name) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("get",), "Say whose settings"),
        (("get", "--broker", "1", "--topic", "t"), "Say whose settings"),
        (("set", "--broker", "1"), "Nothing to change"),
        (("set", "--broker", "1", "nonsense"), "write NAME=VALUE"),
        (("get", "--broker", "1", "log.dirss"), "did you mean log.dirs?"),
    ],
    ids=str,
)
def test_a_question_that_is_not_clear_is_refused(
    commands: Commands, arguments: tuple[str, ...], said: str
) -> None:
    assert said in commands.refusal("config", *arguments)


def test_a_sensitive_value_is_never_shown(
    commands: Commands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Setting("ssl.key", None, "broker", True, None, True, False)

    def describe(*_: object, **__: object) -> Steps[dict[str, Setting]]:
        yield from ()
        return {"ssl.key": secret}

    monkeypatch.setattr("fencepost.client.configs.describe_settings", describe)
    monkeypatch.setattr("fencepost.client.configs.alter_settings", describe)
    assert HIDDEN in commands.run("config", "get", "--broker", "1")
    shown = commands.run("config", "set", "--broker", "1", "ssl.key=hunter2")
    assert "hunter2" not in shown
    assert HIDDEN in shown
