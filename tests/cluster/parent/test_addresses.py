"""The addresses of several brokers, from settings that are written for one."""

from __future__ import annotations

import pytest

from fencepost.base.failures import ConfigError
from fencepost.cluster.parent.addresses import settings_of_brokers

IDS = [1, 2, 3]


def listeners(**given: str) -> list[str]:
    settings = {name.replace("_", "."): value for name, value in given.items()}
    return [each["listeners"] for each in settings_of_brokers(settings, IDS)]


def advertised(text: str) -> list[str]:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:9092", "advertised.listeners": text}
    return [each["advertised.listeners"] for each in settings_of_brokers(settings, IDS)]


def test_brokers_listen_on_consecutive_ports() -> None:
    assert listeners(listeners="PLAINTEXT://127.0.0.1:9092") == [
        "PLAINTEXT://127.0.0.1:9092",
        "PLAINTEXT://127.0.0.1:9093",
        "PLAINTEXT://127.0.0.1:9094",
    ]


def test_with_port_0_every_broker_takes_a_free_port() -> None:
    assert listeners(listeners="PLAINTEXT://[::1]:0") == ["PLAINTEXT://[::1]:0"] * 3


def test_every_broker_has_its_own_id() -> None:
    assert [each["node.id"] for each in settings_of_brokers({}, IDS)] == ["1", "2", "3"]


def test_the_port_of_one_advertised_listener_rises_with_the_brokers() -> None:
    assert advertised("PLAINTEXT://host:19092") == [
        "PLAINTEXT://host:19092",
        "PLAINTEXT://host:19093",
        "PLAINTEXT://host:19094",
    ]


def test_each_broker_may_have_its_own_advertised_listener() -> None:
    given = ["PLAINTEXT://a:1", "PLAINTEXT://b:2", "PLAINTEXT://c:3"]
    assert advertised(",".join(given)) == given


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"node.id": "7"}, "node.id cannot be set for several brokers"),
        ({"broker.id": "7"}, "broker.id cannot be set for several brokers"),
        ({"listeners": "PLAINTEXT://127.0.0.1:65534"}, "need ports up to 65536"),
        (
            {"advertised.listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"},
            "has 2 entries for PLAINTEXT; give one",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_sentence(
    given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings_of_brokers(given, IDS)
