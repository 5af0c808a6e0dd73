"""Histograms, and where error codes are in replies."""

from __future__ import annotations

import pytest

from fencepost.broker.handlers import HANDLERS
from fencepost.broker.metrics.counters import Histogram
from fencepost.broker.metrics.requests import NO_PATHS, RequestCounters, error_paths
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)


def test_a_value_on_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.buckets == [2, 2, 1]
    assert histogram.total == 8.0
    assert histogram.count == 5


@pytest.mark.parametrize("api", sorted(HANDLERS))
def test_every_reply_that_can_have_an_error_has_a_path_to_it(api: ApiKey) -> None:
    response = API[api].response
    fields = {field.name for field in response.form_fields}
    if error_paths(response) == NO_PATHS:
        assert not any("error" in name for name in fields), response


def test_each_partition_of_a_reply_counts() -> None:
    counters = RequestCounters()
    partitions = [PartitionProduceResponse(error_code=code) for code in (0, 3, 3, 47)]
    reply = ProduceResponse(responses=[TopicProduceResponse(partition_responses=partitions)])
    counters.count_errors(ApiKey.PRODUCE, reply)
    assert counters.errors == {(ApiKey.PRODUCE, 3): 2, (ApiKey.PRODUCE, 47): 1}
