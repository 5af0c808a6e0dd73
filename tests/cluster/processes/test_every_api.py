"""Every API in every advertised version: a cluster answers as a single broker does.

Method: requests without content, of which only the error codes count. A difference would be one of
the broker's mode, which clients should not notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost.client.blocking import connect
from fencepost.client.routes import CoordinatorKey, CoordinatorKind
from fencepost.wire.apis import API
from tests.broker.raw import RawClient, frame_as_written
from tests.broker.test_handlers_every_api import EVERY_VERSION, plain_request

pytestmark = pytest.mark.slow

CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


def test_a_cluster_refuses_no_more_than_a_single_broker() -> None:
    with fencepost.Broker(config=CONFIG) as single, fencepost.Cluster(2, config=CONFIG) as cluster:
        create_coordinators(single.bootstrap_servers)
        create_coordinators(cluster.bootstrap_servers)
        alone = errors_by_version(single.bootstrap_servers)
        together = [errors_by_version(str(broker.address)) for broker in cluster.brokers]
    for version, errors in alone.items():
        # Only one of the brokers coordinates the empty group; the other says so.
        assert errors in (found[version] for found in together), version


def create_coordinators(bootstrap_servers: str) -> None:
    """Has their topics created, which takes a cluster a moment."""
    with connect(bootstrap_servers) as client:
        for kind in CoordinatorKind:
            client.find_coordinator(CoordinatorKey(kind, ""))


def errors_by_version(address: str) -> dict[str, list[int]]:
    """The error codes in the replies to empty requests."""
    found = {}
    for key, version in EVERY_VERSION:
        with RawClient(address) as client:
            client.send_bytes(frame_as_written(key, version, plain_request(key)))
            reply = client.reply(key, version)
        found[f"{API[key].name} v{version}"] = list(error_codes(reply))
    return found


def error_codes(form: Any) -> Iterator[int]:
    """All error codes in a reply, wherever they are."""
    if isinstance(form, list):
        for each in form:
            yield from error_codes(each)
    for name in getattr(form, "__slots__", ()):
        value = getattr(form, name)
        if name.endswith("error_code"):
            yield value
        else:
            yield from error_codes(value)
