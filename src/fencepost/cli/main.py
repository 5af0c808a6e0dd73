"""Which command was asked for."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the `fencepost` command."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        from fencepost.cli.serve import serve

        sys.exit(serve(arguments[1:]))
    from fencepost.base.failures import FencepostError
    from fencepost.cli.app import app

    try:
        app()
    except FencepostError as problem:
        print(f"fencepost: {problem}", file=sys.stderr)
        sys.exit(1)
