"""`fencepost --version`."""

from __future__ import annotations

from typer.testing import CliRunner

import fencepost
from fencepost.cli.app import app


def test_an_interpreted_build_prints_only_its_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert shown.output == f"fencepost {fencepost.__version__}\n"
