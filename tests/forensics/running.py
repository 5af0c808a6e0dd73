"""Commands that raise their errors."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from fencepost.cli.app import app


def run(servers: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--bootstrap-servers", servers])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def timeline(servers: str, transactional_id: str, *more: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(
        run(servers, "txn", "timeline", transactional_id, "--json", *more)
    )
    return row
