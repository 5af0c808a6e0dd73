"""Tables for people."""

from __future__ import annotations

from typing import Final

import pytest

from fencepost.cli.output import Column, Text


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


ROWS: Final = [
    {
        "transactional_id": "refunds-service-17",
        "state": "PrepareCommit",
        "producer": 4_711,
        "place": "refunds-0, orders-12",
        "verdict": "it hangs",
    },
    {"transactional_id": "a", "state": "Empty", "producer": 1, "place": "-", "verdict": "fine"},
]


def on_a_terminal(
    width: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    monkeypatch.setattr("fencepost.cli.output._room", lambda: width)
    Text().table(ROWS, list(ROWS[0]), "", ["producer", "place", "verdict", "state"])
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("width", [None, *range(1, 100)])
def test_a_narrow_terminal_leaves_out_columns_and_breaks_no_word(
    width: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = on_a_terminal(width, capsys, monkeypatch)
    shown = set(" ".join(lines).replace(",", " ").split())
    if width is None or width >= 27:  # The longest word takes two thirds.
        assert all(len(line) <= (width or 1_000) for line in lines)
        assert {"refunds-service-17", "transactional", "a"} <= shown
    words = {word for row in ROWS for value in row.values() for word in str(value).split()}
    words |= {"transactional", "id", *ROWS[0], "(Too", "narrow", "for:", "--json", "has"}
    words |= {"everything.)", "id."} | {f"{name}." for name in ROWS[0]}
    known = {part for word in words for part in word.split(",")}
    if width is None or width >= 27:
        assert shown <= known


@pytest.mark.parametrize(
    ("width", "missing"),
    [
        (100, None),
        (64, None),
        (63, "producer"),
        (54, "producer"),
        (53, "producer, place"),
        (42, "producer, place"),
        (41, "producer, place, verdict"),
        (28, "state, producer, place, verdict"),
    ],
)
def test_the_columns_that_matter_least_go_first(
    width: int,
    missing: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = " ".join(on_a_terminal(width, capsys, monkeypatch)).partition("(Too narrow for: ")[2]
    assert (said.partition(".")[0] or None) == missing


def test_a_number_stays_with_its_unit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"id": "a-longer-name", "kind": "x", "age_ms": 250_000, "size_bytes": 1_500}
    for width in range(20, 45):
        monkeypatch.setattr("fencepost.cli.output._room", lambda width=width: width)
        Text().table([row], list(row), "")
        table = capsys.readouterr().out.partition("(Too")[0]
        assert ("4 min 10 s" in table) == (" age" in table) == (width >= 31)
        assert ("1.5 KB" in table) == (" size" in table) == (width >= 39)


def test_columns_that_must_stay_are_shown_on_any_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"name": "log.retention.check.interval.ms", "old": "300000", "new": "/a/long/path" * 9}
    for width in (120, 60, 40):
        monkeypatch.setattr("fencepost.cli.output._room", lambda width=width: width)
        Text().table([row], list(row), "", can_go=())
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        assert "Too narrow" not in "".join(lines)
        joined = "".join("".join(lines[1:]).split())
        assert all(letter in joined for letter in set("".join(row.values())))


def test_a_long_id_is_broken_before_it_pushes_everything_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.cli.output._room", lambda: 80)
    Text().table([{"topic": "t" * 249, "partitions": 3}], ["topic", "partitions"], "")
    lines = capsys.readouterr().out.splitlines()
    assert "".join(line.split()[0] for line in lines[1:]) == "t" * 249
    assert lines[1].split()[1:] == ["3"]


def test_a_long_table_goes_without_columns_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.cli.output._room", lambda: 20)
    rows = [{"topic": f"t{n}", "what": "two words", "leader": 1} for n in range(2_000)]
    Text().table(rows, ["topic", "what", "leader"], "", ["leader"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2_000:2_002] == ["t1999  two words", "(Too narrow for:"]
    assert lines[2_002].startswith("leader.")


def test_a_listing_leaves_out_only_as_many_columns_as_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {
        "offset": Column(8),
        "epoch": Column(5, is_optional=True),
        "sequence": Column(8, is_optional=True),
        "key": Column(3),
    }
    for width, titles in {30: 4, 29: 3, 20: 3, 19: 2, 5: 2}.items():
        monkeypatch.setattr("fencepost.cli.output._room", lambda width=width: width)
        Text().listing([], columns)
        assert len(capsys.readouterr().out.split()) == titles
