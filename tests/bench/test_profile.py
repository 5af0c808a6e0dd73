"""Parsing the output of strace."""

from __future__ import annotations

from bench.profile import _calls

TABLE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 40.66    0.032843           6      5226           write
 22.55    0.018216           7      2410        12 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.051059           6      7636        12 total
"""


def test_system_calls_are_listed_with_count_and_cost() -> None:
    assert list(_calls(TABLE)) == [("write", 5226, 6.0), ("recvfrom", 2410, 7.0)]
