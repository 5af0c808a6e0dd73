"""python -m bench.acl: what a decision of the authorizer costs, among 10,000 ACLs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Final

from fencepost.broker.authorization import AllowAll
from fencepost.broker.security.authorizer import StandardAuthorizer
from fencepost.coordinator.acl.decide import Policy, Question, decide
from fencepost.coordinator.acl.rules import Operation, PatternType, Permission, ResourceType, Rule
from fencepost.coordinator.acl.state import AclState

COUNT: Final = 10_000
ME, HERE = "User:u1", "10.0.0.1"


def mixed() -> Iterator[Rule]:
    """Topics, groups and ids of 300 teams, half of them by prefix."""
    chance = random.Random(1)
    for number in range(COUNT):
        name = f"team{chance.randrange(300)}-{'x' * chance.randrange(20)}{number}"
        yield Rule(
            ResourceType(chance.choice((2, 2, 2, 3, 5))),
            name,
            PatternType(chance.choice((3, 4))),
            f"User:u{chance.randrange(500)}",
            "*",
            Operation(chance.choice((3, 4, 8))),
            Permission.ALLOW if chance.random() < 0.95 else Permission.DENY,
        )


def one_topic() -> Iterator[Rule]:
    """All users on one topic."""
    for number in range(COUNT):
        yield _topic("orders", PatternType.LITERAL, f"User:u{number}")


def addresses() -> Iterator[Rule]:
    """All topics denied to a list of addresses."""
    for number in range(COUNT):
        host = f"10.1.{number // 250}.{number % 250}"
        everything = _topic("*", PatternType.LITERAL, "User:*")
        yield everything._replace(host=host, permission=Permission.DENY)


def prefixes() -> Iterator[Rule]:
    """One user with prefixes of 200 lengths."""
    for number in range(COUNT):
        yield _topic(f"{'p' * (number % 200 + 1)}{number}", PatternType.PREFIXED, ME)


def _topic(name: str, pattern: PatternType, user: str) -> Rule:
    return Rule(ResourceType.TOPIC, name, pattern, user, "*", Operation.READ, Permission.ALLOW)


def main() -> None:
    """Prints microseconds of processor time, the best of five."""
    for shape in (mixed, one_topic, addresses, prefixes):
        state = AclState()
        for number, rule in enumerate(shape()):
            state.add(number.to_bytes(16, "big"), rule)
        names = [rule.resource_name for rule in state.rules.values()]
        cached = StandardAuthorizer(state, Policy())

        def new(name: str, state: AclState = state) -> None:
            question = Question(ME, HERE, Operation.READ, ResourceType.TOPIC, name)
            decide(state, Policy(), question)

        def known(name: str, authorizer: StandardAuthorizer = cached) -> None:
            authorizer.authorize(ME, HERE, "READ", "TOPIC", name)

        def free(name: str, authorizer: AllowAll = AllowAll()) -> None:  # noqa: B008
            authorizer.authorize(ME, HERE, "READ", "TOPIC", name)

        figures = ", ".join(
            f"{word} {_microseconds(call, names):.2f}"
            for word, call in (("new", new), ("cached", known), ("no authorizer", free))
        )
        print(f"{shape.__doc__} {figures} us")


def _microseconds(call: Callable[[str], None], names: list[str]) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for name in names:
            call(name)
        best = min(best, time.process_time() - start)
    return best / len(names) * 1e6


if __name__ == "__main__":
    main()
