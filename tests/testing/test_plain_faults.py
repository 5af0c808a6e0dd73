"""Descriptions of faults: each becomes the fault that it says, or changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.testing.faults import Faults
from fencepost.testing.plain_faults import arm


def no_broker() -> Faults:
    return Faults(lambda _: None, lambda _: None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"api": "EndTxn", "action": "lose_reply"}, "EndTxn: lose_reply()"),
        ({"api": "EndTxn", "action": "lose_request", "disconnect": False}, "lose_request()"),
        ({"api": "EndTxn", "action": "disconnect"}, "EndTxn: disconnect()"),
        ({"api": "EndTxn", "action": "hold", "topic": None}, "EndTxn: hold()"),
        ({"api": "Produce", "action": "throttle", "ms": 5}, "Produce: throttle(5)"),
        ({"api": "Fetch", "action": "delay", "ms": 250, "always": True}, "Fetch: delay(0.25)"),
        ({"api": "EndTxn", "action": "crash", "restart": True}, "EndTxn: crash()"),
        ({"step": "commit.prepare-appended", "action": "crash"}, "commit.prepare-appended: crash"),
        (
            {
                "api": "Produce",
                "action": "fail",
                "error": "NOT_LEADER_OR_FOLLOWER",
                "topic": "refunds",
                "client_id": "a",
                "times": 3,
            },
            "Produce (client_id='a', topic='refunds'): fail('NOT_LEADER_OR_FOLLOWER')",
        ),
    ],
)
def test_a_description_becomes_the_fault_that_it_says(given: dict[str, Any], words: str) -> None:
    assert words in str(arm(no_broker(), given))


@pytest.mark.parametrize(
    ("trigger", "first", "count", "probability"),
    [
        ({}, 1, 1, 1.0),
        ({"times": 3}, 1, 3, 1.0),
        ({"on_call": 3}, 3, 1, 1.0),
        ({"always": True}, 1, None, 1.0),
        ({"always": False, "times": 2}, 1, 2, 1.0),
        ({"with_probability": 0.5, "seed": 7}, 1, None, 0.5),
        ({"with_probability": 1}, 1, None, 1.0),
    ],
)
def test_a_trigger_says_how_often(
    trigger: dict[str, Any], first: int, count: int | None, probability: float
) -> None:
    made = arm(no_broker(), {"api": "EndTxn", "action": "hold", **trigger}).made
    assert (made.first, made.count, made.probability) == (first, count, probability)


def test_an_optional_fault_may_be_left_over() -> None:
    faults = no_broker()
    assert not arm(faults, {"api": "EndTxn", "action": "hold", "optional": True}).is_missing
    assert arm(faults, {"api": "EndTxn", "action": "hold"}).is_missing


HOLD: dict[str, Any] = {"api": "EndTxn", "action": "hold"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], r"is a JSON object, and not \[\]"),
        ({}, 'needs an "action": fail, '),
        ({"action": "hold"}, 'for an "api", such as EndTxn'),
        ({**HOLD, "step": "commit.prepare-appended"}, 'or for a "step"'),
        ({**HOLD, "clientid": "a"}, "no 'clientid': did you mean 'client_id'"),
        ({"api": "EndTx", "action": "hold"}, "did you mean 'EndTxn'"),
        ({"api": "EndTxn", "action": "lose_replay"}, "did you mean 'lose_reply'"),
        ({"api": "EndTxn", "action": "do"}, "cannot be sent"),
        ({"api": "EndTxn", "action": "fail"}, '"fail" needs "error"'),
        ({"api": "EndTxn", "action": "fail", "error": "FENCED"}, "did you mean"),
        ({"api": "EndTxn", "action": "fail", "error": "NONE"}, "NONE is not an error"),
        ({"api": "EndTxn", "action": "delay"}, '"delay" needs "ms"'),
        ({**HOLD, "ms": 5}, '"hold" has no "ms"'),
        ({**HOLD, "times": 0}, "would never apply"),
        ({**HOLD, "times": "3"}, "\"times\" is a whole number, and not '3'"),
        ({**HOLD, "times": True}, "is a whole number, and not True"),
        ({**HOLD, "times": 2**31}, "is a whole number, and not 2147483648"),
        ({**HOLD, "on_call": -1}, "the first request is 1"),
        ({**HOLD, "times": 2, "always": True}, "one trigger"),
        ({**HOLD, "seed": 2}, 'belongs to "with_probability"'),
        ({**HOLD, "with_probability": 2}, "is not in"),
        ({**HOLD, "with_probability": float("nan")}, "is a number"),
        ({**HOLD, "with_probability": 10**400}, "is a number"),
        ({**HOLD, "version": 99}, "has no version 99"),
        ({**HOLD, "topic": {"a": "b" * 100}}, r"is text, and not .{50}\.\.\.\."),
        ({"step": "commit.prepare-appended", "action": "hold"}, 'there is only "crash"'),
        (
            {"step": "commit.prepare-append", "action": "crash"},
            "did you mean 'commit.prepare-appended'",
        ),
        (
            {"step": "commit.prepare-appended", "action": "crash", "topic": "a"},
            '"topic" matches requests',
        ),
        ({"api": "ApiVersions", "action": "throttle", "ms": 0}, "is no pause"),
        ({"api": "EndTxn", "action": "delay", "ms": -1}, "in the past"),
    ],
)
def test_a_wrong_description_is_refused_in_a_sentence_and_changes_nothing(
    given: object, sentence: str
) -> None:
    faults = no_broker()
    with pytest.raises(ConfigError, match=sentence):
        arm(faults, given)
    assert faults.pending == []
    faults.check()
