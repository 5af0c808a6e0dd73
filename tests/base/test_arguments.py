"""Every argument of the public classes is compared with its annotation, before anything happens.

Goal: `adopt="false"` does not adopt, and a list where a text is expected is named in a sentence.
Method: the signatures of all public classes and functions are walked. Each argument is checked or
is in UNCHECKED, so a new one cannot be forgotten; and each check is tried with wrong values. The
other arguments are dummies: a call that was not refused at once would fail in another way.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from fencepost.base.arguments import ArgumentError, Kind, check, checked, checks_of, kinds_of
from fencepost.base.failures import ConfigError
from fencepost.testing.clock import Clock
from fencepost.testing.cluster_faults import ClusterFaults
from fencepost.testing.contents import Group
from fencepost.testing.faults import Fault, Faults, Step, Target

pytest.importorskip("pyspark", reason="the spark extra is not installed")

PUBLIC = [
    getattr(importlib.import_module(module), name)
    for module in ("fencepost", "fencepost.spark", "fencepost.outside")
    for name in importlib.import_module(module).__all__
    if name != "__version__"
]
REACHED = [Clock, ClusterFaults, Fault, Faults, Group, Step, Target]
"""The objects behind `broker.clock`, `broker.faults` and `broker.group(...)`."""

UNCHECKED = {
    "a function": {"function", "is_done", "key", "on_progress", "on_step", "output_key", "report"},
    "an object of a library": {"df", "moment", "output", "spark", "stop"},
    "an object of ours": {
        "accept", "api", "carrier", "cluster", "columns", "fault", "faults", "fired", "kind",
        "limits", "on_refused", "outbox", "problem", "security", "settings", "snapshot",
    },
}  # fmt: skip
IS_UNCHECKED = set[str]().union(*UNCHECKED.values())


class Argument(NamedTuple):
    owner: str
    function: Callable[..., Any]
    name: str
    kinds: tuple[Kind, ...] | None

    def __str__(self) -> str:
        return f"{self.owner}({self.name})"


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for found in PUBLIC:
        if not inspect.isclass(found):
            yield found.__name__, found
        elif issubclass(found, tuple):
            yield from methods_of(found, "__new__")
        elif not issubclass(found, BaseException | str):
            yield from methods_of(found, "__init__", "__call__")
    for found in REACHED:  # We make them.
        yield from methods_of(found)


def methods_of(found: type, *makers: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(found):
        function = inspect.getattr_static(found, name)
        is_static = isinstance(function, staticmethod | classmethod)
        if is_static:
            function = function.__func__
        # Methods of a tuple run once per row, and are not checked.
        is_public = not name.startswith("_") and (is_static or not issubclass(found, tuple))
        if inspect.isfunction(function) and (is_public or name in makers):
            yield f"{found.__name__}.{name}", function


def arguments() -> list[Argument]:
    return [
        Argument(owner, function, name, kinds)
        for owner, function in functions()
        for name, kinds in checks_of(function).items()
    ]


CHECKED = [each for each in arguments() if each.kinds is not None]
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
WRONG: tuple[Any, ...] = ("false", 7, 1.5, [1], ["a"], b"a", object())


def test_every_argument_is_checked_or_is_known_to_need_no_check() -> None:
    left = {
        str(each) for each in arguments() if each.kinds is None and each.name not in IS_UNCHECKED
    }
    assert left == set()
    assert len(CHECKED) > 100


def test_no_name_is_left_in_the_list_for_nothing() -> None:
    assert {each.name for each in arguments() if each.kinds is None} >= IS_UNCHECKED


@pytest.mark.parametrize("argument", CHECKED, ids=str)
def test_a_value_of_another_type_is_refused_before_anything_happens(argument: Argument) -> None:
    assert argument.kinds is not None
    wrong = [value for value in WRONG if not any(kind.accepts(value) for kind in argument.kinds)]
    assert wrong
    for value in wrong:
        with pytest.raises(ArgumentError, match=f"^{argument.name} must be "):
            call(argument.function, argument.name, value)


def call(function: Callable[..., Any], name: str, value: object) -> None:
    given: list[object] = []
    named: dict[str, object] = {}
    for each in inspect.signature(function).parameters.values():
        if each.name == name:
            named[name] = value
        elif each.default is each.empty and each.kind in NAMED:
            named[each.name] = dummy(function, each.name)
    if "_cls" in named:
        given.append(named.pop("_cls"))
    named.setdefault(name, value)
    function(*given, **named)


def dummy(function: Callable[..., Any], name: str) -> object:
    kinds = checks_of(function).get(name)
    if kinds is None:
        return object()
    candidates: tuple[object, ...] = ("x", 1, True, ["x"], {})
    return next(each for each in candidates if any(kind.accepts(each) for kind in kinds))


@pytest.mark.parametrize(
    ("annotation", "accepted", "refused"),
    [
        ("bool", [True, False], ["false", "", 0, 1, None]),
        ("bool | None", [None, True], ["None", 0]),
        ("int", [3, -1], [True, 1.0, "3"]),
        ("float", [3, 0.5], [True, "0.5"]),
        ("str | None", ["", "a", None], [b"a", ["a"], 1]),
        ("str | Sequence[str]", ["a", ["a"], ("a",), [], {"a"}], [["a", 1], {"a": 1}, b"a", None]),
        ("Mapping[str, object] | None", [{}, None], [[("a", 1)], "a"]),
        ("Literal['auto', 'plain']", ["auto"], ["Auto", "", None]),
    ],
)
def test_each_kind_of_annotation_accepts_its_values(
    annotation: str, accepted: list[object], refused: list[object]
) -> None:
    kinds = kinds_of(annotation)
    assert kinds is not None
    for value in accepted:
        check("it", value, kinds)
    for value in refused:
        with pytest.raises(ArgumentError):
            check("it", value, kinds)


def test_a_sentence_says_what_was_given_and_never_a_secret() -> None:
    @checked
    def connect(bootstrap_servers: str, password: str = "", *, adopt: bool = False) -> None: ...

    with pytest.raises(ConfigError, match=r"adopt must be True or False, not 'false'"):
        connect("a:1", adopt="false")  # type: ignore[arg-type]
    expected = r"bootstrap_servers must be a text, such as 'host:9092,host:9092', not \['a:1'\]"
    with pytest.raises(TypeError, match=expected):
        connect(["a:1"])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="password must be a text, not bytes"):
        connect("a:1", b"hunter2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'adpot'"):
        connect("a:1", adpot=True)  # type: ignore[call-arg]
