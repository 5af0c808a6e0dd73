"""The third stage: do outputs stand in the order of their inputs? Pure.

Kafka orders the records of one partition only. So for each pair of an input and an output partition
the outputs must stand in the order of their inputs. An output is late if it stands behind one of a
later input. Only inputs whose key no other input has are compared, and only if they have not too
many outputs: a copy always stands behind later ones, and is a finding already.

Matches come in portions of an output partition's offsets, so that no task must hold a whole
partition. A portion reports the least and greatest input of each pair; an input that is less than
the greatest of an earlier portion is late as well. `carried_over` finds out whether there are any,
but not how many: one per portion is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from fencepost.spark.auditing.matching import FINDING, MATCH, Array, Kind, findings_of

PORTION_BITS: Final = 22
"""A portion has 4 million offsets: about 100 MB of matches."""


class Reach(NamedTuple):
    """The inputs of one partition in one portion of an output partition."""

    output_place: int
    portion: int
    input_place: int
    least: int
    least_output: int
    """Where the output of the least input stands."""
    most: int


def split_portions(matches: Array) -> Iterator[tuple[int, int, Array]]:
    """Output place, number of the portion, and its matches."""
    portion = matches["output_offset"] >> PORTION_BITS
    labels = (matches["output_place"].astype(np.int64) << 40) | portion
    for label in np.unique(labels):
        chosen = matches[labels == label]
        yield int(label >> 40), int(label & ((1 << 40) - 1)), chosen


def late_in(portion: int, matches: Array) -> tuple[Array, list[Reach]]:
    """The late outputs of one portion, and what the other portions need to know."""
    order = np.argsort(matches["output_offset"], kind="stable")
    matches = matches[order]
    by_input = np.argsort(matches["input_place"], kind="stable")
    matches = matches[by_input]
    cuts = np.flatnonzero(np.diff(matches["input_place"])) + 1
    late, reaches = [np.zeros(0, FINDING)], []
    for run in np.split(matches, cuts):
        if not len(run):
            continue
        inputs = run["input_offset"]
        late.append(_late(run[inputs < np.maximum.accumulate(inputs)]))
        least = int(inputs.argmin())
        reaches.append(
            Reach(
                int(run["output_place"][0]),
                portion,
                int(run["input_place"][0]),
                int(inputs[least]),
                int(run["output_offset"][least]),
                int(inputs.max()),
            )
        )
    return np.concatenate(late), reaches


def carried_over(reaches: Iterable[Reach]) -> Array:
    """Outputs that are late because of an earlier portion: one for each portion that has any."""
    found = []
    most: dict[tuple[int, int], int] = {}
    for reach in sorted(reaches):
        pair = (reach.output_place, reach.input_place)
        if reach.least < most.get(pair, -1):
            found.append((reach.input_place, reach.output_place, reach.least, reach.least_output))
        most[pair] = max(reach.most, most.get(pair, -1))
    return _late(np.array(found, MATCH))


def _late(matches: Array) -> Array:
    columns = {name: matches[name] for name in MATCH.names or ()}
    return findings_of(Kind.REORDERED, len(matches), **columns)
