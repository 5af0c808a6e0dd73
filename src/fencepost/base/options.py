"""Parsing of option values: the one reader for broker settings, client options and Spark options.

Texts are read as Kafka's ConfigDef reads them: surrounding blanks do not count, `+5` is a number,
`0x10` and `1_000` are not, TRUE is true and yes is not. Every error names the option, says what it
must be and quotes the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fencepost.base.failures import ConfigError

INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}")
# Nothing matches in two ways: clients send values, and a search among the ways takes for ever.
_FRACTION: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")

_LEAST_SIMILARITY: Final = 0.7
"""Of a name that is suggested, on difflib's scale: its default of 0.6 finds unrelated names among
the hundred options of a client."""


SECRET_WORDS: Final = ("password", "passphrase", "secret", "jaas", "keystore.key")


def names_a_secret(setting: str) -> bool:
    """Whether the value of a setting of a client or a broker must not be seen."""
    return any(word in setting.lower() for word in SECRET_WORDS)


def refuse_secret_argument(name: str, option: str) -> None:
    """Refuses secrets in arguments, which every user of the machine can see; names the option."""
    if names_a_secret(name):
        raise ConfigError(
            f"{name} is a secret: put it into a properties file, with {option}. Every user of this "
            "machine can see the arguments of a process."
        )


def parse_whole(name: str, given: object, *, least: int, most: int) -> int:
    """A whole number within the bounds, from a text or a number."""
    trimmed = str(given).strip()
    if not _WHOLE.fullmatch(trimmed):
        raise must_be(name, "a whole number", given)
    number = int(trimmed)
    if number < least:
        raise must_be(name, f"at least {least}", given)
    if number > most:
        raise must_be(name, f"at most {most}", given)
    return number


def parse_fraction(name: str, given: object) -> float:
    """A number that may have a fraction and an exponent."""
    trimmed = str(given).strip()
    if not _FRACTION.fullmatch(trimmed):
        raise must_be(name, "a number", given)
    return float(trimmed)


def parse_boolean(name: str, given: object) -> bool:
    """True or false, in any case."""
    word = str(given).strip().lower()
    if word not in ("true", "false"):
        raise must_be(name, "true or false", given)
    return word == "true"


def must_be(name: str, wanted: str, given: object) -> ConfigError:
    """The error for an option with a value that is not accepted."""
    return ConfigError(f"{name} must be {wanted}, not {given!r}")


def _bare(name: str) -> str:
    """A name as it is compared: Kafka writes Txn in some names and transaction in others."""
    return name.lower().replace("transaction", "txn")


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the most similar known one, or nothing."""
    from difflib import get_close_matches  # Only a misspelled name pays for the import.

    by_lower = {_bare(each): each for each in known}
    found = get_close_matches(_bare(name), list(by_lower), n=1, cutoff=_LEAST_SIMILARITY)
    return f"; did you mean {by_lower[found[0]]}?" if found else ""
