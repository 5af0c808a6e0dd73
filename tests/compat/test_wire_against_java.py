"""Our codecs against Kafka's own generated message classes.

Method: we encode seeded messages of every API and version; Kafka's classes decode them, convert
them to JSON and encode them again. The JSON must have our values, and the bytes must be ours, or
others that we decode to the same message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

from fencepost.wire.apis import API, Api, ApiKey
from fencepost.wire.compile import decode
from tests.wire.samples import SampleMessage, as_json, samples
from tools.java_tools import JavaTools

ORACLE_SECONDS = 100.0
PER_VERSION = 6
KEYS = {api.name: api.key for api in API.values()}


@pytest.fixture(scope="module")
def answers(newest_client: JavaTools) -> dict[str, list[tuple[SampleMessage, dict[str, Any]]]]:
    """Every sample with the result of Kafka's classes, by the name of its API."""
    asked = list(samples(PER_VERSION))
    lines = [f"{KEYS[one.api]:d} {one.version} {one.kind} {one.data.hex()}" for one in asked]
    output = newest_client.check(
        "WireOracle", stdin="\n".join(lines), seconds=ORACLE_SECONDS
    ).splitlines()
    pairs = list(zip(asked, map(json.loads, output), strict=True))
    return {name: list(group) for name, group in groupby(pairs, key=lambda pair: pair[0].api)}


def failures(pairs: list[tuple[SampleMessage, dict[str, Any]]]) -> Iterator[str]:
    """A line for each sample on which Kafka's classes and ours disagree."""
    for sample, answer in pairs:
        where = f"{sample.api} v{sample.version} {sample.kind} {sample.data.hex()}"
        if "error" in answer:
            yield f"{where}: Kafka cannot read it: {answer['error']}"
        elif answer["left"]:
            yield f"{where}: Kafka left {answer['left']} bytes unread"
        elif as_kio_names_it(sample, of_records_the_size(answer["json"])) != sample.fields:
            yield f"{where}: Kafka reads {answer['json']}, we wrote {sample.fields}"
        elif answer["hex"] != sample.data.hex() and not same_to_us(sample, answer["hex"]):
            yield f"{where}: Kafka writes {answer['hex']}"


def as_kio_names_it(sample: SampleMessage, shown: dict[str, Any]) -> dict[str, Any]:
    """Kafka 4.4 has renamed one field."""
    if sample.api == "TxnOffsetCommit" and "generationIdOrMemberEpoch" in shown:
        shown["generationId"] = shown.pop("generationIdOrMemberEpoch")
    return shown


def of_records_the_size(shown: Any) -> Any:
    """Kafka shows the size of records, and of null `records: null`; the samples show the size 0."""
    if isinstance(shown, list):
        return [of_records_the_size(one) for one in shown]
    if not isinstance(shown, dict):
        return shown
    fields = {name: of_records_the_size(value) for name, value in shown.items()}
    if "records" in fields:
        assert fields.pop("records") is None
        fields["recordsSizeInBytes"] = 0
    return fields


def same_to_us(sample: SampleMessage, written: str) -> bool:
    """Whether other bytes mean the same: either side may omit a tag that the other writes."""
    api = API[KEYS[sample.api]]
    form = api.request if sample.kind == "request" else api.response
    again = decode(form, sample.version, bytes.fromhex(written))
    return as_json(again, sample.version) == sample.fields


@pytest.mark.parametrize("name", sorted(KEYS))
def test_kafkas_classes_read_and_write_the_same_bytes(
    name: str, answers: dict[str, list[tuple[SampleMessage, dict[str, Any]]]]
) -> None:
    assert list(failures(answers[name])) == []


@pytest.fixture(scope="module")
def kafkas_versions(newest_client: JavaTools) -> dict[int, dict[str, Any]]:
    output = [
        json.loads(line) for line in newest_client.check("WireOracle", "versions").splitlines()
    ]
    return {one["key"]: one for one in output}


@pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)
def test_an_api_has_kafkas_versions_and_headers(
    api: Api, kafkas_versions: dict[int, dict[str, Any]]
) -> None:
    theirs = kafkas_versions[int(api.key)]
    assert (api.name, api.min_version, api.max_version) == (
        theirs["name"],
        theirs["lowest"],
        theirs["highest"],
    )
    for version in range(api.min_version, api.max_version + 1):
        assert api.request_header_version(version) == theirs["requestHeaders"][str(version)]
        assert api.response_header_version(version) == theirs["responseHeaders"][str(version)]


def test_kafkas_classes_refuse_truncated_bytes(newest_client: JavaTools) -> None:
    """Checks the oracle: its approval would mean little if it accepted every message."""
    asked = f"{ApiKey.END_TXN:d} 0 request 0001"
    answer = json.loads(newest_client.check("WireOracle", stdin=asked))
    assert "error" in answer
