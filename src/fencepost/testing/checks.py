"""Named checks of what a program sent, read and committed, as plain lists.

    assert not checks.lost_write(committed=[b"s-1", b"s-2"], read=[b"s-1"])

The names are those that Jepsen's analyses of Kafka use. Each function is pure, takes what a test
has written down, and returns a list of sentences, empty if all is well; each begins with the name.
A long list ends after twenty sentences with the number of the others.

Records are told apart by any hashable value: the value that was sent, a key, or (partition, offset,
value). It should be unique, for a check cannot know which of two equal records it sees. A partition
is any hashable name, such as `("payments", 0)`.

What a test has not written down it cannot check: no list is optional but for `sent` of `duplicate`,
and offsets of a partition whose input is not given are a finding.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Final

__all__ = [
    "aborted_read",
    "duplicate",
    "lost_write",
    "nonmonotonic_poll",
    "nonmonotonic_send",
    "offsets_without_output",
    "torn_transaction",
]

Place = tuple[Hashable, int]
"""A partition and an offset in it."""

_SHOWN: Final = 20


def aborted_read(aborted: Iterable[Hashable], read: Iterable[Hashable]) -> list[str]:
    """Records of aborted transactions that a read_committed consumer has read."""
    never = set(aborted)
    found = dict.fromkeys(each for each in read if each in never)
    return _first(
        f"aborted read: {each!r} was read, and its transaction was aborted" for each in found
    )


def lost_write(committed: Iterable[Hashable], read: Iterable[Hashable]) -> list[str]:
    """Records that were acknowledged or committed, and that a complete read does not have."""
    wanted, found = _counts(committed), _counts(read)
    return _first(
        f"lost write: {each!r} was committed"
        + (f" {count} times and read {_times(found[each])}" if count > 1 else " and never read")
        for each, count in wanted.items()
        if found[each] < count
    )


def duplicate(read: Iterable[Hashable], sent: Iterable[Hashable] | None = None) -> list[str]:
    """Records that one read has more often than they were sent: once each, without `sent`.

    What was read and never sent is not a duplicate, and is not reported.
    """
    found = _counts(read)
    allowed = _counts(found if sent is None else sent)
    return _first(
        f"duplicate: {each!r} was read {count} times and sent {_times(allowed[each])}"
        for each, count in found.items()
        if count > allowed[each] > 0
    )


def torn_transaction(
    transactions: Mapping[Hashable, Iterable[Hashable]], read: Iterable[Hashable]
) -> list[str]:
    """Transactions of which a complete read has one part and not the other.

    `transactions` has the records of each, by any name. It may have those whose outcome is unknown.
    """
    visible = set(read)
    problems = []
    for name, given in transactions.items():
        records = list(dict.fromkeys(given))
        missing = [each for each in records if each not in visible]
        if 0 < len(missing) < len(records):
            shown = [each for each in records if each in visible]
            problems.append(
                f"torn transaction: of {name!r} {_some(shown)} was read, and {_some(missing)} not"
            )
    return _first(problems)


def offsets_without_output(
    committed: Mapping[Hashable, int], inputs: Iterable[Place], outputs: Iterable[Place]
) -> list[str]:
    """Input records that a group has passed although nothing was written for them.

    `committed` has the offset of each partition that the group continues from. `inputs` are the
    records that should have an output, `outputs` those that have one, both as places in the input.
    """
    done = set(outputs)
    by_partition: defaultdict[Hashable, list[int]] = defaultdict(list)
    for partition, offset in inputs:
        by_partition[partition].append(offset)
    problems = []
    for partition, next_offset in committed.items():
        if next_offset > 0 and partition not in by_partition:
            problems.append(
                f"offsets without output: the group stands at {next_offset} of {partition!r}, "
                "whose input is not given"
            )
        problems += [
            f"offsets without output: the group stands at {next_offset} of {partition!r}, "
            f"and {offset} has no output"
            for offset in sorted(by_partition.get(partition, ()))
            if offset < next_offset and (partition, offset) not in done
        ]
    return _first(problems)


def nonmonotonic_poll(polled: Iterable[Place]) -> list[str]:
    """Places where one consumer, in the order in which it polled, went back or got one again.

    A rebalance or a seek may lead back to the committed offset: check each assignment by itself.
    """
    return _first(
        f"non-monotonic poll: {partition!r} gave {offset} after {before}"
        for partition, before, offset in _falls(polled)
    )


def nonmonotonic_send(sent: Iterable[Place]) -> list[str]:
    """Places where records of one producer, in the order in which it sent them, are out of order.

    The places are those that its acknowledgements named.
    """
    return _first(
        f"non-monotonic send: {partition!r} has at {offset} what was sent after its record at "
        f"{before}"
        for partition, before, offset in _falls(sent)
    )


def _falls(places: Iterable[Place]) -> Iterable[tuple[Hashable, int, int]]:
    last: dict[Hashable, int] = {}
    for partition, offset in places:
        if partition in last and offset <= last[partition]:
            yield partition, last[partition], offset
        last[partition] = offset


def _counts(records: Iterable[Hashable]) -> Counter[Hashable]:
    return Counter(iter(records))  # Counter would take a mapping for counts; here it is its keys.


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _some(records: list[Hashable]) -> str:
    shown = ", ".join(map(repr, records[:3]))
    return f"{shown} and {len(records) - 3} more" if len(records) > 3 else shown


def _first(problems: Iterable[str]) -> list[str]:
    found = list(problems)
    more = len(found) - _SHOWN
    return [*found[:_SHOWN], f"and {more} more like this"] if more > 0 else found
