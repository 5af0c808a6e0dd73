"""Transactions of librdkafka over TLS with client certificates, by a user with ACLs.

The same certificates (keys on P-256), the same settings by Kafka's names, and the same ACLs on both
sides: those of `fencepost acl grant transactional`. Otherwise it is the load of `transactions.py`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench.load import Load, Measure, Round, Scale, Values
from bench.loads.transactions import Shape, commit_many, values_of
from bench.sides import KAFKA, KAFKA_DELETES_SOON, KAFKA_HEAP, Broker, Side, fencepost_python
from fencepost.client.acls import Acl, create_acls
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.coordinator.acl.grants import transactional_rights
from fencepost.coordinator.acl.words import read_rule
from tools.apache_kafka import ApacheKafka
from tools.fencepost_process import FencepostProcess
from tools.processes import free_port

SHAPE: Final = Shape(16, 200, 50, 1)
TOPIC: Final = "secure"
PARTITIONS: Final = 4
ADMIN: Final = "admin"
WRITER: Final = "writer"
_KEY: Final = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    folder.mkdir(parents=True, exist_ok=True)
    _make_certificates(folder)
    transactions = scale.of(SHAPE.transactions, SHAPE.quick_transactions)
    broker, servers = _start(side, folder)
    with broker, connect(servers, _tls(folder, ADMIN)) as admin:
        _grant(admin)

        def run(number: int) -> Values:
            topic = f"{TOPIC}-{number}"
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
            common = {"bootstrap.servers": servers, "linger.ms": 5, **_tls(folder, WRITER)}
            producers = [
                Producer({**common, "transactional.id": f"{TOPIC}-{which}"})
                for which in range(SHAPE.producers)
            ]
            with ThreadPoolExecutor(SHAPE.producers) as pool:
                list(pool.map(lambda one: one.init_transactions(), producers))
                started = time.perf_counter()
                timed = pool.map(
                    lambda one: commit_many(one, topic, transactions, SHAPE), producers
                )
                commits = [ms for many in timed for ms in many]
                seconds = time.perf_counter() - started
            return values_of(commits, seconds, SHAPE)

        yield run


def _start(side: Side, folder: Path) -> tuple[Broker, str]:
    """A broker of that side, and its address with TLS."""
    port = free_port()
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The broker of Apache Kafka itself is anonymous.
        "super.users": f"User:CN={ADMIN};User:ANONYMOUS",
    }
    servers = f"127.0.0.1:{port}"
    if side is KAFKA:
        own, controller = free_port(), free_port()
        doors = f"PLAINTEXT://127.0.0.1:{own},SSL://{servers}"
        settings |= {
            **KAFKA_DELETES_SOON,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{doors},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": doors,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        }
        return ApacheKafka(folder / "data", settings=settings, heap=KAFKA_HEAP, port=own), servers
    settings["listener.security.protocol.map"] = "PLAINTEXT:SSL"
    file = folder / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    options = ["--config-file", str(file)]
    python = fencepost_python()
    return FencepostProcess(
        folder / "data", listen=servers, options=options, python=python
    ), servers


def _grant(admin: Cluster) -> None:
    rights = transactional_rights(f"{TOPIC}-*", [f"{TOPIC}-*"], [], None)
    rules = [read_rule(f"User:CN={WRITER}", *each, deny=False, host="*") for each in rights]
    admin.run(create_acls(admin.core, [Acl(*rule) for rule in rules]))


def _tls(folder: Path, name: str) -> Mapping[str, str]:
    """The settings of a client, for librdkafka and for ours."""
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(folder / "ca.pem"),
        "ssl.certificate.location": str(folder / f"{name}.crt"),
        "ssl.key.location": str(folder / f"{name}.key"),
    }


def _make_certificates(folder: Path) -> None:
    _openssl(folder, f"req -x509 {_KEY} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("broker", ADMIN, WRITER):
        _openssl(folder, f"req {_KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr")
        _openssl(
            folder,
            f"x509 -req -days 2 -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial "
            f"-extfile names -out {name}.crt",
        )
    both = folder / "broker.pem"
    both.touch(mode=0o600)
    both.write_text((folder / "broker.key").read_text() + (folder / "broker.crt").read_text())


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


LOAD: Final = Load(
    "secure-transactions-16",
    "librdkafka over TLS with ACLs: 1 record per transaction, 16 producers",
    (
        Measure("transactions", "transactions/s", "more", ratio=2.0),
        Measure("p50", "ms per commit, median", "less"),
        Measure("p99", "ms per commit, p99", "less", ratio=0.5),
    ),
    _session,
    quick_rounds=2,
    rounds=4,
    warmup_seconds=3,
    quick_warmup_seconds=1,
)
