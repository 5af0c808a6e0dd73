"""`fencepost --version`."""

from __future__ import annotations

from typer.testing import CliRunner

import fencepost
from fencepost.cli.app import app


def test_the_version_is_shown_without_a_word_where_nothing_is_compiled() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert shown.output == f"fencepost {fencepost.__version__}\n"
