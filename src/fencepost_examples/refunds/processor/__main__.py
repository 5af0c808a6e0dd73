"""Runs one shard of the refunds processor until Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import signal
import threading
from importlib import import_module
from typing import Any, Final

from fencepost_examples.refunds.processor.ports import FencedError, Kafka
from fencepost_examples.refunds.processor.processor import RefundsProcessor
from fencepost_examples.refunds.processor.rows import SETTLEMENTS

CLIENTS: Final = {
    "confluent": ("with_confluent", "ConfluentKafka"),
    "kafka-python": ("with_kafka_python", "KafkaPython"),
    "aiokafka": ("with_aiokafka", "AioKafka"),
}


def connect(client: str, bootstrap_servers: str, **options: Any) -> Kafka:
    """Connects with the chosen library. The others need not be installed."""
    module, name = CLIENTS[client]
    adapter = getattr(import_module(f"fencepost_examples.refunds.processor.{module}"), name)
    kafka: Kafka = adapter(bootstrap_servers, **options)
    return kafka


def parser() -> argparse.ArgumentParser:
    """Returns the parser of this program's options."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    made.add_argument("--client", choices=list(CLIENTS), default="confluent")
    made.add_argument("--shard", type=int, default=0, help="the partition of the settlements")
    return made


def main() -> int:
    """Returns the exit code: 0 after Ctrl-C, 1 when another instance has taken over."""
    options = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    kafka = connect(
        options.client,
        options.bootstrap_servers,
        transactional_id=f"refunds-processor-{options.shard}",
        group="refunds-processor",
        source=[(SETTLEMENTS, options.shard)],
    )
    processor = RefundsProcessor(kafka)
    try:
        processor.start()
        processor.run(stop=stopping.is_set)
    except FencedError:
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
