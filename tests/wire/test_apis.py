"""The table of APIs against kio's schema and the known replies of Apache Kafka 4.4."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kio.schema.index import api_key_map, schema_name_map

from fencepost.wire.apis import API, BY_NUMBER, Api, ApiKey
from fencepost.wire.schema import is_flexible, versions_of
from tools.fold_schema import APIS, NEWER, main

EVERY_API = [pytest.param(api, id=api.name) for api in API.values()]


def test_every_api_is_in_the_table_under_its_number() -> None:
    assert {key.name.lower(): int(key) for key in API} == APIS
    assert all(api_key_map[number] == name for name, number in APIS.items())
    assert [int(key) for key in API] == list(BY_NUMBER)


@pytest.mark.parametrize("api", EVERY_API)
def test_an_api_is_served_in_all_versions_that_kafka_serves(api: Api) -> None:
    known = sorted(schema_name_map[api.key.name.lower()])
    if api.key.name.lower() in NEWER:
        known.append(NEWER[api.key.name.lower()][0])
    if api.key is ApiKey.INIT_PRODUCER_ID:
        known.remove(6)  # Unstable in 4.4: in the schema, but not offered.
    assert (api.min_version, api.max_version) == (known[0], known[-1])


@pytest.mark.parametrize("api", EVERY_API)
def test_requests_and_responses_are_flexible_from_the_version_in_the_table(api: Api) -> None:
    for form in (api.request, api.response):
        for version in versions_of(form):
            assert api.is_flexible(version) == is_flexible(form, version)


def test_only_produce_advertises_versions_that_it_does_not_serve() -> None:
    differing = [api.key for api in API.values() if api.advertised_min != api.min_version]
    assert differing == [ApiKey.PRODUCE]
    assert API[ApiKey.PRODUCE].advertised_min == 0
    assert not API[ApiKey.PRODUCE].serves(2)


def test_an_api_prints_under_its_name_in_kafka() -> None:
    assert repr(API[ApiKey.END_TXN]) == "EndTxn (26): v0-5"
    assert API[ApiKey.OFFSET_FOR_LEADER_EPOCH].name == "OffsetForLeaderEpoch"


def test_the_forms_match_the_output_of_the_tool() -> None:
    assert main(["--check"]) == 0


def test_the_codec_imports_neither_kio_nor_unused_forms() -> None:
    script = (
        "import sys, fencepost.wire.codec, fencepost.wire.framing;"
        "sys.exit('kio' in sys.modules or 'asyncio' in sys.modules"
        " or 'fencepost.wire.forms.describe_cluster' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": "src"}, check=False)
    assert run.returncode == 0
