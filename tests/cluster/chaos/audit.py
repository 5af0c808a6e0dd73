"""What must be true after any faults. Every auditor takes plain values and returns problems.

What has a name in `fencepost.testing.checks` is checked by it.

copies        every record of the source once, none twice, none that was to be aborted
order         copies of one source partition have its order, in every partition of `copies`
source        the feeder's records, once each and in order
reader        the reader that follows the copies never goes back
views         what a reader saw during the faults is what readers see afterwards
transactions  none is open, and no last stable offset is behind
producer ids  none belongs to two producers
offsets       the groups stand at the end of the source, and nothing they passed has no copy
log           no broker has failed an assertion or logged a traceback
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from fencepost.testing import checks
from tests.cluster.chaos.copier import Copy

SHOWN: Final = 5
"""How many of many similar problems are reported."""

COMPLAINTS: Final = re.compile(
    r"Traceback|AssertionError|assertion|exit code 70|CRITICAL|a callback failed|never retrieved",
    re.IGNORECASE,
)


class Seen(NamedTuple):
    """A record of `copies` and where it stands."""

    partition: int
    offset: int
    copy: Copy


class OpenTransaction(NamedTuple):
    """A transaction that is open at a coordinator or in a partition."""

    where: str
    producer: str


def audit_copies(source: Mapping[int, Sequence[int]], seen: Iterable[Seen]) -> list[str]:
    """`source` has the offsets of the records of each partition."""
    found = list(seen)
    copied = [source_place(each) for each in found]
    wanted = {(f"source-{p}", offset) for p, offsets in source.items() for offset in offsets}
    doomed = [each.copy for each in found if each.copy.is_doomed]
    return [
        *_some(checks.aborted_read(doomed, (each.copy for each in found))),
        *_some(checks.lost_write(wanted, copied)),
        *_some(checks.duplicate(copied)),
        *_some([f"a copy of {each}, which does not exist" for each in sorted({*copied} - wanted)]),
    ]


def audit_order(seen: Iterable[Seen]) -> list[str]:
    """Copies of one source partition must keep its order in each partition of `copies`."""
    in_order = sorted(seen, key=lambda one: (one.copy.partition, one.copy.offset, one.offset))
    return _some(
        checks.nonmonotonic_send(
            (f"copies-{each.partition} from source-{each.copy.partition}", each.offset)
            for each in in_order
        )
    )


def audit_reader(during: Iterable[Seen]) -> list[str]:
    """The reader never goes back: what it saw, in the order in which it saw it."""
    return _some(checks.nonmonotonic_poll((f"copies-{p}", offset) for p, offset, _ in during))


def audit_source(fed: Mapping[int, Sequence[str]], found: Mapping[int, Sequence[str]]) -> list[str]:
    """What an idempotent producer was told is in the log, against what it was given."""
    problems = []
    for partition, values in fed.items():
        logged = found.get(partition, ())
        if list(values) != list(logged):
            at = next(
                (n for n, pair in enumerate(zip(values, logged, strict=False)) if len({*pair}) > 1),
                min(len(values), len(logged)),
            )
            problems.append(
                f"source-{partition} has {len(logged)} records, {len(values)} were written; "
                f"they differ from record {at} on"
            )
    return problems


def audit_views(during: Iterable[Seen], after: Iterable[Seen]) -> list[str]:
    """A committed record never changes or vanishes, and none appears behind a reader."""
    before = {(each.partition, each.offset): each.copy for each in during}
    later = {(each.partition, each.offset): each.copy for each in after}
    problems = []
    for (partition, offset), copy in sorted(before.items()):
        if later.get((partition, offset)) != copy:
            problems.append(f"copies-{partition}@{offset} was {copy} and is gone or another one")
    for partition, offset in sorted(later.keys() - before.keys()):
        problems.append(f"copies-{partition}@{offset} was never seen by the reader that passed it")
    return _some(problems)


def audit_transactions(
    listed: Mapping[str, str],
    in_partitions: Iterable[OpenTransaction],
    stable: Mapping[str, tuple[int, int]],
) -> list[str]:
    """`listed` has the state of each id, `stable` last stable offset and high watermark."""
    ended = ("Empty", "CompleteCommit", "CompleteAbort")
    return [
        *(f"{name} is still {state}" for name, state in listed.items() if state not in ended),
        *(f"{each.where} has an open transaction of {each.producer}" for each in in_partitions),
        *(
            f"{name}: the last stable offset {lso} is behind the high watermark {end}"
            for name, (lso, end) in stable.items()
            if lso != end
        ),
    ]


def audit_producer_ids(owners: Iterable[tuple[int, str]]) -> list[str]:
    """`owners` are pairs of a producer id and who got it; an id must have one owner."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for producer_id, owner in owners:
        found[producer_id].add(owner)
    return [
        f"producer id {producer_id} belongs to {', '.join(sorted(names))}"
        for producer_id, names in sorted(found.items())
        if len(names) > 1
    ]


def audit_epochs(history: Iterable[tuple[str, int, int]]) -> list[str]:
    """Records of `__transaction_state` as (id, producer id, epoch): an epoch never falls."""
    last: dict[tuple[str, int], int] = {}
    problems = []
    for name, producer_id, epoch in history:
        before = last.get((name, producer_id), -1)
        if epoch < before:
            problems.append(f"{name}: producer {producer_id} fell from epoch {before} to {epoch}")
        last[name, producer_id] = epoch
    return _some(problems)


def audit_offsets(
    committed: Mapping[int, int], source: Mapping[int, Sequence[int]], seen: Iterable[Seen]
) -> list[str]:
    """The groups stand at the end of the source, and have passed nothing without a copy."""
    return [
        *_some(
            checks.offsets_without_output(
                {f"source-{partition}": offset for partition, offset in committed.items()},
                [(f"source-{p}", offset) for p, offsets in source.items() for offset in offsets],
                map(source_place, seen),
            )
        ),
        *(
            f"source-{partition} ends at {offsets[-1] + 1}, its group stands at "
            f"{committed.get(partition)}"
            for partition, offsets in source.items()
            if offsets and committed.get(partition) != offsets[-1] + 1
        ),
    ]


def audit_log(lines: Iterable[str]) -> list[str]:
    """Lines of all brokers and of the parent."""
    return _some([line.strip() for line in lines if COMPLAINTS.search(line)])


def source_place(seen: Seen) -> tuple[str, int]:
    """Where the copied record stands."""
    return f"source-{seen.copy.partition}", seen.copy.offset


def _some(problems: list[str]) -> list[str]:
    if len(problems) <= SHOWN:
        return problems
    return [*problems[:SHOWN], f"... and {len(problems) - SHOWN} more like this"]
