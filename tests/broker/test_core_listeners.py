"""Several listeners: each client gets the addresses of the listener that it is connected to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import fencepost
from fencepost.base.failures import ConfigError
from fencepost.broker.node import Node
from fencepost.broker.settings.config import BrokerConfig
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_cluster import DescribeClusterRequest
from fencepost.wire.forms.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from fencepost.wire.forms.describe_quorum import DescribeQuorumRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.raw import RawClient
from tests.broker.security.certificates import Authority, tls_config

SECRET: Final = "open-sesame"

Address = tuple[str, int]


@pytest.fixture(name="authority", scope="module")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(name="broker", scope="module")
def _broker(authority: Authority) -> Iterator[fencepost.Broker]:
    config = tls_config(authority) | {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": "OUTSIDE://kafka.test:9443,INSIDE://kafka.local:9092",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SSL,PLAINTEXT:PLAINTEXT",
        "ssl.key.password": SECRET,
        "listener.name.outside.ssl.key.password": SECRET,
    }
    with fencepost.Broker(config=config) as running:
        yield running


def ports(broker: fencepost.Broker) -> dict[str, int]:
    def find(node: Node) -> dict[str, int]:
        names = [each.name for each in node.config.client_listeners]
        assert node._server is not None
        bound = [server.sockets[0].getsockname()[1] for server in node._server._servers]  # type: ignore[attr-defined]
        return dict(zip(names, bound, strict=True))

    return broker.call(find)


@pytest.fixture(name="clients")
def _clients(broker: fencepost.Broker, authority: Authority) -> Iterator[dict[str, RawClient]]:
    found = ports(broker)
    tls = authority.trusting()
    clients = {
        name: RawClient(f"127.0.0.1:{port}", tls=tls if name == "OUTSIDE" else None)
        for name, port in found.items()
    }
    yield clients
    for client in clients.values():
        client.close()


def addresses(client: RawClient) -> set[Address]:
    """All addresses that a broker tells one client."""
    metadata = client.call(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
    cluster = client.call(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest(endpoint_type=1))
    asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
    coordinator = client.call(ApiKey.FIND_COORDINATOR, 4, asked).coordinators[0]
    assert coordinator.error_code == 0
    quorum = client.call(ApiKey.DESCRIBE_QUORUM, 2, DescribeQuorumRequest(topics=[]))
    everywhere = (
        *metadata.brokers,
        *cluster.brokers,
        coordinator,
        *(listener for node in quorum.nodes for listener in node.listeners),
    )
    return {(each.host, each.port) for each in everywhere}


def test_every_address_in_a_reply_is_that_of_the_listener(
    broker: fencepost.Broker, clients: dict[str, RawClient]
) -> None:
    assert addresses(clients["INSIDE"]) == {("kafka.local", 9092)}
    assert addresses(clients["OUTSIDE"]) == {("kafka.test", 9443)}
    # Nothing is advertised for it: it is where it listens.
    assert addresses(clients["PLAINTEXT"]) == {("127.0.0.1", ports(broker)["PLAINTEXT"])}


def test_the_metadata_log_has_every_listener_with_its_protocol(broker: fencepost.Broker) -> None:
    endpoints = broker.call(lambda node: node.metadata.brokers[1].endpoints)
    assert [(each.name, each.security_protocol) for each in endpoints] == [
        ("INSIDE", 0),
        ("OUTSIDE", 1),
        ("PLAINTEXT", 0),
    ]


def test_after_a_restart_the_addresses_are_those_of_the_new_settings(
    authority: Authority, tmp_path: Path
) -> None:
    for name in ("first.test", "second.test"):
        config = tls_config(authority) | {"advertised.listeners": f"SSL://{name}:1"}
        with (
            fencepost.Broker(data=tmp_path, config=config) as broker,
            RawClient(f"127.0.0.1:{ports(broker)['SSL']}", tls=authority.trusting()) as client,
        ):
            assert addresses(client) == {(name, 1)}


def test_no_description_shows_a_secret(clients: dict[str, RawClient]) -> None:
    asked = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=4, resource_name="1")],
        include_synonyms=True,
    )
    reply = clients["INSIDE"].call(ApiKey.DESCRIBE_CONFIGS, 4, asked)
    rows = {row.name: row for row in reply.results[0].configs}
    assert SECRET not in repr(reply)
    for name in ("ssl.key.password", "listener.name.outside.ssl.key.password", "ssl.keystore.key"):
        assert rows[name].is_sensitive
        assert rows[name].value is None
    assert rows["listener.security.protocol.map"].value


# -- settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"listeners": "A://h:1,A://h:2"}, "listeners has A twice"),
        ({"listeners": "SSL://h:1,TLS://h:2"}, "has no protocol for TLS"),
        ({"listeners": "X://h:1", "listener.security.protocol.map": "X:TLS"}, "is not a security"),
        (
            {"listeners": "SSL://h:1,PLAINTEXT://h:2", "advertised.listeners": "X://h:3"},
            "advertised.listeners has X, which listeners does not have: SSL, PLAINTEXT",
        ),
        ({"listeners": "SSL://0.0.0.0:1"}, "clients cannot connect to SSL://0.0.0.0:1"),
        ({"listener.name.x.ssl.client.auth": "never"}, "one of none, requested, required"),
        # Otherwise the listener would be there without its protection.
        ({"listener.name.x.ssl.client.auth": "required"}, "that listeners does not have"),
        ({"listener.name.PLAINTEXT.ssl.client.auth": "required"}, "in lower case here: plaintext"),
    ],
)
def test_listeners_that_cannot_be_are_refused_with_a_sentence(
    settings: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        BrokerConfig(settings)


def test_a_setting_that_one_listener_cannot_have_is_a_warning() -> None:
    config = BrokerConfig({"listener.name.plaintext.num.partitions": "3"})
    (warning,) = config.warnings
    assert warning.endswith("has no effect: num.partitions cannot be set for one listener")


def test_a_certificate_of_clients_with_sasl_is_asked_for_by_the_listeners_own_setting() -> None:
    settings = {
        "listeners": "SSL://127.0.0.1:1,SASL_SSL://127.0.0.1:2,OWN://127.0.0.1:3",
        "listener.security.protocol.map": "SSL:SSL,SASL_SSL:SASL_SSL,OWN:SASL_SSL",
        "listener.name.own.ssl.client.auth": "requested",
        "ssl.client.auth": "required",
    }
    config = BrokerConfig(settings)
    found = [config.client_auth(each.name) for each in config.client_listeners]
    assert found == ["required", "none", "requested"]
    (warning,) = config.warnings
    assert "listener.name.sasl_ssl.ssl.client.auth=required asks for one" in warning


@pytest.mark.parametrize(
    ("protocol", "settings", "named"),
    [
        ("PLAINTEXT", ["ssl.client.auth"], "does not use TLS"),
        ("PLAINTEXT", ["sasl.enabled.mechanisms"], "does not use SASL"),
        ("SSL", ["listener.name.in.plain.sasl.jaas.config"], "does not use SASL"),
        ("SASL_PLAINTEXT", ["listener.name.in.ssl.client.auth"], "does not use TLS"),
        ("SASL_PLAINTEXT", ["sasl.enabled.mechanisms"], None),
        ("SSL", ["listener.name.in.ssl.client.auth", "ssl.client.auth"], None),
    ],
)
def test_settings_of_a_listener_without_their_protocol_are_a_warning(
    protocol: str, settings: list[str], named: str | None
) -> None:
    values = {
        "auth": "required",
        "mechanisms": "PLAIN",
        "config": 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";',
    }
    config = BrokerConfig(
        {
            "listeners": "IN://127.0.0.1:1",
            "listener.security.protocol.map": f"IN:{protocol}",
            **{name: values[name.rpartition(".")[2]] for name in settings},
        }
    )
    if named is None:
        assert config.warnings == []
    else:
        (warning,) = config.warnings
        assert named in warning
        assert warning.endswith(settings[0])


def test_only_listeners_without_protection_are_narrowed_to_loopback() -> None:
    config = BrokerConfig(
        {
            "listeners": "PLAINTEXT://:1,SSL://:2",
            "advertised.listeners": "PLAINTEXT://localhost:1,SSL://localhost:2",
            "ssl.client.auth": "required",
        }
    )
    assert "listeners has PLAINTEXT://:1" in (config.keep_to_loopback() or "")
    assert [str(each.at) for each in config.client_listeners] == [
        "PLAINTEXT://localhost:1",
        "SSL://:2",
    ]
