"""Arguments of public classes and functions, compared with their annotations.

Theory of operation. Python runs `Sink(adopt="false")` as if it said True, and a list where a text
is expected fails somewhere else or not at all. So `@checked` on a class or a function reads its
signatures once, when it is defined, and each call checks what it was given before anything runs:

    bool                     True or False, and nothing that is merely true
    int, float, str, bytes   such a value; True is not a number
    Sequence[str] ...        a list (or the like) of texts; a text is not one
    Mapping[...], Literal[...], os.PathLike[str], None

An annotation may join several with `|`. One that has any other type is not checked: a wrong
DataFrame fails by itself (`UNCHECKED` in `tests/base/test_arguments.py` lists them). Annotations
are read as text, which is what they are under `from __future__ import annotations`.

Options that are texts by nature, as in Spark's `.option(...)`, are parsed by `options.py`.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial, wraps
from os import PathLike
from typing import Any, Final, NamedTuple, TypeVar, cast

from fencepost.base.failures import ConfigError
from fencepost.base.options import names_a_secret
from fencepost.base.topic_names import refuse_name

Target = TypeVar("Target", bound=Callable[..., Any])

_LONGEST: Final = 120
"""Characters of a value in a message."""

_EXAMPLES: Final = {
    "bootstrap_servers": ", such as 'host:9092,host:9092'",
    "config": ", such as {'num.partitions': 3}",
}
_SECRETS: Final = ("dsn", "users")
"""Beside those that `names_a_secret` recognises."""


class ArgumentError(ConfigError, TypeError):
    """An argument of the wrong type."""


class Kind(NamedTuple):
    """Values that an argument may have."""

    words: str
    accepts: Callable[[object], bool]


def _is_whole(value: object) -> bool:
    try:
        return not isinstance(value, bool) and operator.index(value) is not None  # type: ignore[arg-type]
    except TypeError:
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _are_texts(value: object) -> bool:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return False
    # An iterator can be read only once, by the code that uses it.
    return not isinstance(value, Collection) or all(isinstance(each, str) for each in value)


_TEXTS: Final = Kind("a list of texts", _are_texts)
_KINDS: Final = {
    "bool": Kind("True or False", lambda value: isinstance(value, bool)),
    "int": Kind("a whole number", _is_whole),
    "float": Kind("a number", _is_number),
    "str": Kind("a text", lambda value: isinstance(value, str)),
    "bytes": Kind("bytes", lambda value: isinstance(value, bytes)),
    "None": Kind("None", lambda value: value is None),
    "os.PathLike[str]": Kind("a path", lambda value: isinstance(value, PathLike)),
    "Sequence[str]": _TEXTS,
    "Iterable[str]": _TEXTS,
}


def kinds_of(annotation: str) -> tuple[Kind, ...] | None:
    """What an annotation accepts; None if it is not checked."""
    found: list[Kind] = []
    for node in _alternatives(ast.parse(annotation, mode="eval").body):
        kind = _kind_of(node)
        if kind is None:
            return None
        found.append(kind)
    return tuple(found)


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    else:
        yield node


def _kind_of(node: ast.expr) -> Kind | None:
    text = ast.unparse(node)
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        allowed = ast.literal_eval(node.slice)
        allowed = allowed if isinstance(allowed, tuple) else (allowed,)
        return Kind(" or ".join(map(repr, allowed)), partial(operator.contains, allowed))
    if text.startswith("Mapping["):
        return Kind("a mapping", lambda value: isinstance(value, Mapping))
    return _KINDS.get(text)


def check(name: str, value: object, kinds: Collection[Kind]) -> None:
    """Raises ArgumentError unless one of the kinds accepts the value."""
    if any(kind.accepts(value) for kind in kinds):
        return
    *others, last = [kind.words for kind in kinds]
    wanted = f"{', '.join(others)} or {last}" if others else last
    is_secret = names_a_secret(name) or name in _SECRETS
    shown = type(value).__name__ if is_secret else repr(value)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    raise ArgumentError(f"{name} must be {wanted}{_EXAMPLES.get(name, '')}, not {shown}")


def checked(target: Target) -> Target:
    """Checks each call of a function, or of the constructor and public methods of a class.

    Of a tuple only what makes one: its methods run once per row.
    """
    if not isinstance(target, type):
        return cast(Target, _wrapped(target))
    _check_members(target)
    return target


def _check_members(owner: type) -> None:
    is_tuple = issubclass(owner, tuple)
    for name, member in list(vars(owner).items()):
        if name.startswith("_") and name not in ("__init__", "__new__", "__call__"):
            continue
        if isinstance(member, staticmethod | classmethod):
            setattr(owner, name, type(member)(_wrapped(member.__func__)))
        elif inspect.isfunction(member) and (name == "__new__" or not is_tuple):
            setattr(owner, name, _wrapped(member))


def checks_of(function: Callable[..., Any]) -> dict[str, tuple[Kind, ...] | None]:
    """What each argument of a function accepts; None for those that are not checked."""
    found: dict[str, tuple[Kind, ...] | None] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = _text_of(parameter.annotation)
        if annotation.startswith("Unpack["):
            named = inspect.unwrap(function).__globals__[annotation[7:-1]]
            found |= {key: kinds_of(_text_of(it)) for key, it in named.__annotations__.items()}
        elif annotation and parameter.kind is not parameter.VAR_POSITIONAL:
            found[name] = kinds_of(annotation)
    return found


def _text_of(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return str(getattr(annotation, "__forward_arg__", annotation))


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    checks = {name: kinds for name, kinds in checks_of(function).items() if kinds is not None}
    if not checks:
        return function
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    keywords = next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), "")

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            arguments = signature.bind(*given, **named).arguments
        except TypeError:
            return function(*given, **named)  # Python says what is missing or too much.
        rest = arguments.pop(keywords, {})
        for name, value in {**arguments, **rest}.items():
            if name in checks:
                check(name, value, checks[name])
        return function(*given, **named)

    return call


def checked_topic(name: str, topic: str) -> str:
    """The topic that an argument names; ConfigError if there can be none."""
    if (reason := refuse_name(topic)) is not None:
        raise ConfigError(f"{name} is {topic!r}, and cannot be a topic. {reason}")
    return topic
