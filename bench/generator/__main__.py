"""python -m bench.generator: one run against a broker, with figures as text or JSON."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence

from bench.generator.answers import RefusedError
from bench.generator.job import MODES, Job
from bench.generator.run import run
from bench.generator.tally import Figures
from fencepost.base.failures import FencepostError


def main(arguments: Sequence[str] | None = None) -> int:
    wishes = _arguments(arguments)
    try:
        figures = run(_job(wishes))
    except (RefusedError, FencepostError, OSError) as failure:
        print(f"the run failed: {failure}", file=sys.stderr)
        return 1
    print(json.dumps(figures.as_dict()) if wishes.json else _text(figures, wishes.mode))
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.generator", description=__doc__)
    add = parser.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT,..")
    add("--mode", choices=MODES, default="tv2", help=_modes())
    add("--producers", type=int, default=1, help="connections, each with its own producer")
    add("--records", type=int, default=1, help="records per request and partition")
    add("--size", type=int, default=1024, help="bytes of a record's value")
    add("--requests", type=int, default=1, help="Produce requests per transaction")
    add("--spread", type=int, default=1, help="partitions per request")
    add("--window", type=int, default=5, help="Produce requests in flight per connection")
    add("--topic", default="bench")
    add("--partitions", type=int, default=4, help="of the topic, which is created if need be")
    add("--prefix", default="bench", help="of the transactional ids")
    add("--backoff-ms", type=float, default=3.0, help="pause after CONCURRENT_TRANSACTIONS")
    add("--seconds", type=float, default=5.0)
    add("--warmup-seconds", type=float, default=0.0, help="not counted")
    add("--max-bytes", type=int, help="of values; the run ends early when they are written")
    add("--room-bytes", type=int, default=0, help="memory to have at hand, see bench/even.py")
    add(
        "--broker-pids",
        type=_pids,
        default=(),
        metavar="PID,..",
        help="to report the processor time of the brokers too",
    )
    add(
        "--placement",
        default="any",
        choices=("any", "local", "remote"),
        help="in a cluster: partitions led by the producer's coordinator, or by other brokers",
    )
    add("--count", type=int, default=0, help="of ids or open transactions")
    add("--isolation", default="read_uncommitted", choices=("read_uncommitted", "read_committed"))
    add("--json", action="store_true", help="one line of JSON instead of text")
    return parser.parse_args(arguments)


def _pids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _modes() -> str:
    return "; ".join(f"{mode}: {meaning}" for mode, meaning in MODES.items())


def _job(wishes: argparse.Namespace) -> Job:
    return Job(**{name: value for name, value in vars(wishes).items() if name != "json"})


def _text(figures: Figures, mode: str) -> str:
    lines = [
        (
            f"{mode}: {figures.records_per_second:,.0f} records/s, "
            f"{figures.megabytes_per_second:,.1f} MB/s"
        ),
        (
            f"{figures.transactions_per_second:,.0f} txn/s, {figures.requests_per_second:,.0f} "
            "requests/s"
        ),
        _times("request", figures.request_p50_ms, figures.request_p99_ms),
    ]
    if figures.transactions:
        lines.append(_times("commit", figures.commit_p50_ms, figures.commit_p99_ms))
        lines.append(
            _times("whole transaction", figures.transaction_p50_ms, figures.transaction_p99_ms)
        )
    cost = f"{figures.generator_us_per_request:.1f} µs per request"
    lines.append(f"retries after CONCURRENT_TRANSACTIONS: {figures.retries}")
    lines.append(f"the generator itself: {figures.generator_cpu:.0%} of a processor, {cost}")
    if figures.broker_cpu:
        one = "transaction" if figures.transactions else "request"
        each = f"{figures.broker_us:.1f} µs per {one}"
        lines.append(f"the broker: {figures.broker_cpu:.0%} of a processor, {each}")
    return "\n".join(lines)


def _times(what: str, p50: float, p99: float) -> str:
    return f"{what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms"


if __name__ == "__main__":
    # There are no reference cycles here, and a collection would show in the latencies.
    gc.disable()
    sys.exit(main())
