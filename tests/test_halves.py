"""What one of the two runs leaves out, the other takes."""

from __future__ import annotations

import pytest

from tests import halves

CALLS = range(1, 12)


def halves_of(patch: pytest.MonkeyPatch, *variation: str) -> list[list[int]]:
    """The half of the interpreted run, and that of the compiled one."""
    found = []
    for is_compiled in (False, True):
        patch.setattr(halves, "IS_COMPILED", is_compiled)
        found.append(list(halves.half_of(CALLS, *variation)))
    return found


@pytest.mark.parametrize("crash", ["kill", "lose_power"])
def test_both_runs_together_take_every_sample_once(
    monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    monkeypatch.setattr(halves, "EVERY_CALL", False)
    interpreted, compiled = halves_of(monkeypatch, "roll", "os", crash)
    assert sorted(interpreted + compiled) == list(CALLS)
    assert abs(len(interpreted) - len(compiled)) == 1


def test_what_a_kill_leaves_out_a_loss_of_power_takes_in_the_same_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(halves, "EVERY_CALL", False)
    killed = halves_of(monkeypatch, "roll", "os", "kill")
    assert halves_of(monkeypatch, "roll", "os", "lose_power") == killed[::-1]


def test_each_run_takes_everything_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "EVERY_CALL", True)
    assert halves_of(monkeypatch, "roll") == [list(CALLS)] * 2
