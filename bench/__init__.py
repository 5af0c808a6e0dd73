"""Where fencepost stands beside Apache Kafka: same machine, same client, same run.

A **side** (`sides.py`) is a broker that can be started on an empty folder. A **load** (`loads/`,
one file for those that are alike) opens a session per side and is asked for one round after the
other; a round answers with a number per measure. The runner (`run.py`) lets the sides take turns,
round by round, so that whatever else the machine does hits them alike, and changes who begins.
Loads that need no broker of their own share one per side, which is warmed up when it is started:
virtual machines compile what runs often. `report.py` shows medians and spread, the ratio between
the sides first; `document.py` writes docs/performance.md from the JSON of a run, with plots from
`svg.py`; `redraw.py` draws those again from the page's own tables.

Clients are librdkafka (`client.py`), Kafka's own Java client (`loads/java.py`) and a load generator
of our own (`generator/`, started by `generate.py`), which costs so little per request that the
broker is the bottleneck.

The bytes of a round are capped and deleted when it is over; the next one begins when they are gone
and all else is written back (`even.py`). Ctrl-C and SIGTERM stop the brokers and delete what they
wrote, too.

Run it with `make bench`, or `python -m bench --quick --only small`.
"""
