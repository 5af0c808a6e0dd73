"""The rules of this room: no sockets, threads or clocks outside the shell; no visible passwords."""

from __future__ import annotations

import ast
from pathlib import Path

import fencepost.client

ROOM = Path(fencepost.client.__file__).parent
SHELL = {"blocking.py", "client_credentials.py", "sockets.py", "tls.py", "tokens.py"}
WORLD = {
    "asyncio",
    "multiprocessing",
    "random",
    "secrets",
    "select",
    "selectors",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_only_the_shell_does_io() -> None:
    touching = {path.name for path in ROOM.glob("*.py") if imports(path) & WORLD}
    assert touching == SHELL


def test_secrets_are_revealed_only_where_they_are_used() -> None:
    revealing = {path.name for path in ROOM.glob("*.py") if ".reveal()" in path.read_text()}
    assert revealing == {"client_credentials.py", "sasl.py", "tls.py"}
