"""Faults as plain data, for programs that are not written in Python.

    {"api": "EndTxn", "action": "lose_reply"}
    {"api": "Produce", "topic": "refunds", "action": "fail", "error": "NOT_LEADER_OR_FOLLOWER",
     "times": 3}
    {"step": "commit.prepare-appended", "action": "crash", "restart": true}

The words are those of `Faults`: an action and its arguments, what has to match, and how often. All
of it is checked before the fault applies: a refused fault changes nothing. `do` is a function of a
Python test, and cannot be sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from fencepost.base.failures import ConfigError
from fencepost.testing.faults import LARGEST, Fault, Faults
from fencepost.testing.names import no_such

_ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "fail": ("error",),
    "lose_request": ("disconnect",),
    "lose_reply": ("disconnect",),
    "disconnect": (),
    "delay": ("ms",),
    "hold": (),
    "throttle": ("ms",),
    "crash": ("restart",),
}
"""What happens, and the words that say more about it."""

_REQUIRED: Final = {"fail": "error", "delay": "ms", "throttle": "ms"}
_MATCHED: Final = ("client_id", "transactional_id", "group", "topic", "version")
_TRIGGERS: Final = ("times", "on_call", "always", "with_probability")

_KINDS: Final[Mapping[str, type]] = {
    "api": str,
    "step": str,
    "action": str,
    "error": str,
    "disconnect": bool,
    "restart": bool,
    "ms": int,
    "client_id": str,
    "transactional_id": str,
    "group": str,
    "topic": str,
    "version": int,
    "times": int,
    "on_call": int,
    "always": bool,
    "with_probability": float,
    "seed": int,
    "optional": bool,
}

_MEANS: Final = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def arm(faults: Faults, given: object) -> Fault:
    """Makes the fault apply that is described; ConfigError if the description is wrong."""
    words = checked(given, _KINDS, "A fault")
    action = _action(words)
    triggers = [each for each in _TRIGGERS if words.get(each, False) is not False]
    if len(triggers) > 1:
        raise ConfigError(f"A fault has one trigger, and not {' and '.join(triggers)}.")
    if "seed" in words and triggers != ["with_probability"]:
        raise ConfigError('"seed" belongs to "with_probability".')
    try:
        fault = _armed(faults, words, action)
    finally:
        faults.begun.clear()  # A refused one is no fault without an action.
    try:
        _repeat(fault, words, triggers)
    except ConfigError:
        fault.remove()
        raise
    return fault.optional() if words.get("optional") else fault


def checked(given: object, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    """A JSON object with these names, and values of these kinds; null is as good as left out."""
    if not isinstance(given, dict):
        raise ConfigError(f"{what} is a JSON object, and not {_shown(given)}.")
    for name, value in given.items():
        kind = kinds.get(name)
        if kind is None:
            raise no_such(f"{what} has no {name!r}", name, kinds)
        if value is not None and not _is_a(kind, value):
            raise ConfigError(f'"{name}" is {_MEANS[kind]}, and not {_shown(value)}.')
    return {name: value for name, value in given.items() if value is not None}


def _is_a(kind: type, value: object) -> bool:
    if kind is float:
        return (isinstance(value, float) and math.isfinite(value)) or _is_a(int, value)
    if kind is int:
        return isinstance(value, int) and type(value) is not bool and abs(value) <= LARGEST
    return isinstance(value, kind)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 50 else f"{text[:50]}..."


def _action(words: Mapping[str, Any]) -> str:
    action = str(words.get("action", ""))
    if action == "do":
        raise ConfigError(
            '"do" is a function of a Python test, which cannot be sent: use another action, such '
            'as "fail" or "hold".'
        )
    if not action:
        raise ConfigError(f'A fault needs an "action": {", ".join(_ACTIONS)}.')
    if action not in _ACTIONS:
        raise no_such(f"There is no action {action!r}", action, _ACTIONS)
    if ("api" in words) == ("step" in words):
        raise ConfigError('A fault is for an "api", such as EndTxn, or for a "step" of a commit.')
    if "step" in words:
        _check_step(words, action)
    needed = _REQUIRED.get(action)
    if needed is not None and needed not in words:
        raise ConfigError(f'"{action}" needs "{needed}".')
    for name in ("error", "disconnect", "ms", "restart"):
        if name in words and name not in _ACTIONS[action]:
            raise ConfigError(f'"{action}" has no "{name}".')
    return action


def _check_step(words: Mapping[str, Any], action: str) -> None:
    if action != "crash":
        raise ConfigError('At a "step" there is only "crash".')
    if wrong := [each for each in _MATCHED if each in words]:
        raise ConfigError(f'"{wrong[0]}" matches requests, and a "step" is not one.')


def _armed(faults: Faults, words: Mapping[str, Any], action: str) -> Fault:
    more = {name: words[name] for name in _ACTIONS[action] if name in words}
    if "step" in words:
        return faults.at(words["step"]).crash(**more)
    matched = {name: words[name] for name in _MATCHED if name in words}
    target = faults.on(words["api"], **matched)
    if action == "delay":
        return target.delay(words["ms"] / 1000)
    fault: Fault = getattr(target, action)(**more)
    return fault


def _repeat(fault: Fault, words: Mapping[str, Any], triggers: list[str]) -> None:
    match triggers:
        case ["times"]:
            fault.times(words["times"])
        case ["on_call"]:
            fault.on_call(words["on_call"])
        case ["always"]:
            fault.always()
        case ["with_probability"]:
            fault.with_probability(words["with_probability"], seed=words.get("seed", 0))
