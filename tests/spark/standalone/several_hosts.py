"""The program of `test_several_hosts.py`, which runs where the driver does.

Arguments: a folder, and the namespaces of the two workers. Starts a broker and a cluster, runs
queries in one driver, and prints what each did as one line of JSON. The broker has a listener with
SASL, where the sources with a password really log in.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from fencepost.client.blocking import connect
from tests.spark.conftest import environment
from tests.spark.standalone.application import DRIVER, Application
from tests.spark.standalone.cluster import Machine, StandaloneCluster
from tests.spark.standalone.namespaces import DRIVER_HOST, WORKER_HOSTS, inside

PASSWORD: Final = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "me",
    "kafka.sasl.password": "hunter2",
}
PLAIN_PORT: Final = 9092
SASL_PORT: Final = 9093
"""Fixed, because the namespace of the driver has nothing else in it."""
READER: Final = {"kafka.bootstrap.servers": f"{DRIVER_HOST}:{SASL_PORT}", **PASSWORD}
QUERIES: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "default": {},
    "plain": {"sink": {"exchange": "plain"}},
    "password": {"sink": {"options": PASSWORD}},
    "source password": {"reader": READER},
    "source plain": {"reader": {**READER, "exchange": "plain"}},
}
"""More arguments of an `Application`, by query."""


def main(folder: Path, namespaces: list[str]) -> None:
    listeners = f"PLAINTEXT://{DRIVER_HOST}:{PLAIN_PORT},SASL_PLAINTEXT://{DRIVER_HOST}:{SASL_PORT}"
    secret = folder / "admin.txt"
    secret.write_text(PASSWORD["kafka.sasl.password"])
    serve = [sys.executable, "-m", "fencepost", "serve", "--config", f"listeners={listeners}"]
    serve += ["--config", "sasl.enabled.mechanisms=PLAIN"]
    serve += ["--init-admin", PASSWORD["kafka.sasl.username"], "--init-admin-password", str(secret)]
    serve += ["--allow-remote", "--data", str(folder / "broker")]
    (folder / "broker").mkdir()
    broker = Machine(serve, folder, (), environment())
    broker.start()
    try:
        servers = broker.process.wait_for_line(
            lambda line: line.split()[-1] if "ready at" in line else None, 60
        )
        with StandaloneCluster(folder, workers=0, host=DRIVER_HOST) as cluster:
            for host, name in zip(WORKER_HOSTS, namespaces, strict=True):
                cluster.add_worker(host, inside(name, "localhost"))
            print(json.dumps(run_queries(folder, servers, cluster)), flush=True)
    finally:
        broker.kill()


def run_queries(folder: Path, servers: str, cluster: StandaloneCluster) -> dict[str, list[str]]:
    """What the driver said about each query, by name."""
    settings = cluster.settings() | {
        "spark.driver.host": DRIVER_HOST,
        # All addresses: which one the executors use is in spark.driver.host.
        "spark.driver.bindAddress": "0.0.0.0",
        # Both workers, so that tasks must meet.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.cores.max": "2",
    }
    applications = {
        name: Application(
            name.replace(" ", "-"),
            folder / name,
            servers,
            cluster.master_url,
            settings,
            partitions=2,
            sink=more.get("sink"),
            reader=more.get("reader"),
        )
        for name, more in QUERIES.items()
    }
    with connect(servers) as client:
        for each in applications.values():
            each.create_topics(client)
            each.feed(client, 3_000)
            Path(each.orders.finish).touch()
    command = [*DRIVER, *(str(each.path) for each in applications.values())]
    driver = Machine(command, folder, (), environment())
    driver.start()
    try:
        driver.process.wait_for_end(400)
        said = _by_query(driver.process.output.splitlines())
    finally:
        driver.kill()
    for name in ("default", "plain", "source plain"):
        if said[name][-1:] == ["finished"]:
            applications[name].assert_exactly_once()
    return said


def _by_query(lines: list[str]) -> dict[str, list[str]]:
    """The lines of each query, from its `running` on."""
    found: list[list[str]] = []
    for line in lines:
        if line == "running":
            found.append([])
        elif found and line.startswith(("route ", "failed: ", "finished")):
            found[-1].append(line)
    return dict(zip(QUERIES, [*found, *[[] for _ in QUERIES]], strict=False)) | {
        "output": lines[-20:]
    }


if __name__ == "__main__":
    os.environ.pop("SPARK_LOCAL_IP", None)
    main(Path(sys.argv[1]), sys.argv[2:])
