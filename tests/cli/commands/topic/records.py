"""Records that commands write and read."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.running import Commands


def values(commands: Commands, topic: str, *more: str) -> list[Any]:
    return [row["value"] for row in commands.lines("topic", "consume", topic, *more)]


def produced(commands: Commands, topic: str, file: str, *more: str) -> Any:
    """Writes lines of text; returns what the command reports."""
    shown = commands.run("topic", "produce", topic, file, *more)
    rows = dict(line.split(maxsplit=1) for line in shown.replace("by partition", "by").splitlines())
    report: dict[str, Any] = {name: value.strip() for name, value in rows.items()}
    report |= {"acknowledged": int(report["acknowledged"])}
    return report | {"by_partition": json.loads(report.pop("by"))}


IMPATIENT = (
    *("--client-config", "delivery.timeout.ms=2000"),
    *("--client-config", "default.api.timeout.ms=2000"),
)
