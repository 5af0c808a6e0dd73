"""The folder of the demo's PostgreSQL, which is another one if root runs the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost_examples.demo.interrupt import Interruption
from fencepost_examples.demo.postgres import folder_of_server


@pytest.mark.parametrize("keeps", [True, False])
def test_tables_are_kept_where_the_user_said_and_nowhere_else(tmp_path: Path, keeps: bool) -> None:
    with (
        Interruption() as interruption,
        folder_of_server(tmp_path, interruption, keeps=keeps) as place,
    ):
        (place / "table").write_text("rows")
    if keeps:
        assert (tmp_path / "postgres" / "table").read_text() == "rows"
    assert place.is_relative_to(tmp_path) or not place.exists()
