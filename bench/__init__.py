"""Where fencepost stands beside Apache Kafka: same machine, same client, same run.

A **side** (`sides.py`) is a broker that can be started on an empty folder. A **load** (`loads/`, one file each) opens a
session per side and is asked for one round after the other; a round answers with a number per measure. The runner
(`run.py`) lets the sides take turns, round by round, so that whatever else the machine does hits them alike, and changes
who begins. Before that each side is warmed up for some seconds with rounds that are not counted. `report.py` shows medians and spread, the ratio
between the sides first.

The bytes of a round are capped (`Scale`), deleted when it is over, and written back before the next one begins.

Run it with `make bench`, or `python -m bench --quick --only produce`.
"""
