"""Tables for people."""

from __future__ import annotations

import pytest

from fencepost.cli.output import Text


@pytest.mark.parametrize("count", [3, 3_000])
def test_short_and_long_tables_look_alike(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"topic": f"t{n % 3}[x]", "size_bytes": n, "leader": None} for n in range(count)]
    Text().table(rows, ["topic", "size_bytes", "leader"], "")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == count + 1
    assert lines[0].split() == ["topic", "size", "leader"]
    assert [line.split() for line in lines[1:3]] == [
        ["t0[x]", "0", "B", "-"],
        ["t1[x]", "1", "B", "-"],
    ]
    assert len({line.index("B") for line in lines[1:10]}) == 1
