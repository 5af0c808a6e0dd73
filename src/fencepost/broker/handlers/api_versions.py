"""ApiVersions (18): v0-5

Behaviour: lists the APIs of the handler table, and the features by which a client chooses its
           transaction protocol: transaction.version 2 is finalised, so Java and franz-go use TV2.
Versions:  v3 flexible, the client's name; v4 may show features whose lowest level is 0, which older
           clients reject (KAFKA-17011); v5 the cluster and the broker that the client wants
           (KIP-1242). An unsupported version is answered in the layout of v0.
Errors:    UNSUPPORTED_VERSION, INVALID_REQUEST (a client name outside of Kafka's pattern; a cluster
           without a broker, or a broker without a cluster), REBOOTSTRAP_REQUIRED (this is another
           cluster or broker: the address that the client knows belongs to someone else by now).
"""

from __future__ import annotations

import logging
import re
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.broker.handlers import HANDLERS, max_served_version
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

log = logging.getLogger(__name__)

NO_NODE: Final = -1
FIRST_VERSION_WITH_NAMES: Final = 3
FIRST_VERSION_WITH_LOWEST_LEVEL_ZERO: Final = 4
FIRST_VERSION_WITH_CLUSTER: Final = 5
SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

TRANSACTION_VERSION: Final = 2
FEATURES: Final = (
    # name, lowest level, highest level, finalised level
    ("transaction.version", 0, TRANSACTION_VERSION, TRANSACTION_VERSION),
    ("metadata.version", 7, 29, 29),
)
"""Clients choose the transaction protocol by transaction.version; some tools read
metadata.version."""


def handle(request: ApiVersionsRequest, context: Context) -> ApiVersionsResponse:
    """Serves one request; see above."""
    if context.api_version >= FIRST_VERSION_WITH_NAMES and not (
        SOFTWARE_NAME.fullmatch(request.client_software_name)
        and SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if context.api_version >= FIRST_VERSION_WITH_CLUSTER and (
        error := _refuse_address(request, context)
    ):
        return ApiVersionsResponse(error_code=error)
    lowest = 0 if context.api_version >= FIRST_VERSION_WITH_LOWEST_LEVEL_ZERO else 1
    return ApiVersionsResponse(
        api_keys=_served_versions(),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, low, high, _ in FEATURES
            if low >= lowest
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, _, _, level in FEATURES
        ],
    )


def _refuse_address(request: ApiVersionsRequest, context: Context) -> ErrorCode:
    """Compares the broker that the client wants with this one."""
    names_a_broker = request.node_id != NO_NODE
    if names_a_broker != (request.cluster_id is not None):
        return ErrorCode.INVALID_REQUEST
    if not names_a_broker:
        return ErrorCode.NONE
    services = context.services
    wanted = (request.cluster_id, request.node_id)
    if wanted == (services.follower.cluster_id, services.config.node_id):
        return ErrorCode.NONE
    log.debug("%s at %s wants another broker: %s", context.client_id, context.client_host, wanted)
    return ErrorCode.REBOOTSTRAP_REQUIRED


def _served_versions() -> list[ApiVersion]:
    """One row per API of the handler table."""
    return [
        ApiVersion(
            api_key=key, min_version=API[key].advertised_min, max_version=max_served_version(key)
        )
        for key in sorted(HANDLERS)
    ]


def unsupported_version_reply() -> ApiVersionsResponse:
    """The reply to an unsupported version; the client picks a version from its ApiVersions row."""
    api = API[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        ],
    )
