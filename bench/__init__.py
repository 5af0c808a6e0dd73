"""Benchmarks beside Apache Kafka: same machine, same client, same run.

A **side** (`sides.py`) is a broker that can be started on an empty folder. A **load** (`loads/`)
opens a session per side and runs one round after the other; a round returns a number per measure.
The runner (`run.py`) alternates the sides round by round, and alternates which one begins, so that
other work on the machine affects both. Loads that do not need a fresh broker share one per side,
which is warmed up when it is started: virtual machines compile code that runs often. `report.py`
prints medians and spread, the ratio of fencepost to Apache Kafka first; `document.py` writes
docs/performance-details.md from the JSON of a run, with plots from `svg.py`; `redraw.py` draws the
plots again from the tables of the page.

A **cluster** (`clusters.py`) is several brokers of one side, for the loads about them.

Clients are librdkafka (`client.py`), Kafka's Java client (`loads/java.py`) and our own load
generator (`generator/`, started by `generate.py`), which costs so little per request that the
broker is the bottleneck.

The bytes of a round are capped, and deleted after it; the next round begins when they are gone and
all other data are written back (`even.py`). Ctrl-C and SIGTERM also stop the brokers and delete
their data.

Run it with `make bench`, or `python -m bench --quick --only small`.
"""
