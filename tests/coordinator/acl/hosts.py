"""Hosts of rules that no client is ever at."""

from __future__ import annotations

from typing import Final

NOBODYS_HOSTS: Final = {
    "localhost": "is no address",
    "a.example": "neither names nor networks",
    "10.0.0.0/8": "neither names nor networks",
    "10.0.0.7/32": "neither names nor networks",
    "::1/128": "neither names nor networks",
    "[::1]": "is no address",
    "10.0.0.*": "is no address",
    "10.0.0": "is no address",
    "10.0.0.007": "is no address",
    "10.0.0.7:9092": "is no address",
    " 10.0.0.7": "is no address",
    "**": "is no address",
    "::ffff:10.0.0.7": "brokers know it as 10.0.0.7",
    "0.0.0.0": "for all of them is *",
    "::": "for all of them is *",
    "224.0.0.1": "for all of them is *",
    "fe80::1%eth0": "write fe80::1.",
}
"""By host, what the refusal says."""
