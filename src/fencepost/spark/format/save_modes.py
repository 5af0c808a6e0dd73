"""The save mode of a routed DataFrame: append, or a sentence that says so.

Spark refuses its own default mode (errorifexists) and `ignore` for every Python data source before
it asks the source, and recommends overwrite, which a topic cannot do. So `route` returns a
DataFrame whose writer remembers the mode, and answers first. All else is Spark's own.

The writers of a routed DataFrame also see to it that Spark finds the format in the thread that
uses them (`session.activate`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError
from fencepost.spark.session import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FORMAT: Final = "fencepost"

ADD_APPEND: Final = (
    'add .mode("append"): without it Spark wants a target that does not exist yet, and writing to '
    "a topic always adds to it. Nothing was written"
)
NO_OVERWRITE: Final = (
    "a topic cannot be overwritten: records are only added to it, and deleted by its retention. "
    'Use mode("append"), or create another topic. Nothing was written'
)
NO_IGNORE: Final = (
    'mode("ignore") would write nothing if the topic exists, and rows can only be written to a '
    'topic that exists. Use mode("append"), with txnAppId and txnVersion if the same write may be '
    "repeated. Nothing was written"
)
_REFUSED: Final = {
    None: ADD_APPEND,
    "error": ADD_APPEND,
    "errorifexists": ADD_APPEND,
    "default": ADD_APPEND,
    "overwrite": NO_OVERWRITE,
    "ignore": NO_IGNORE,
}


def explain_modes(df: DataFrame) -> DataFrame:
    """The same DataFrame, with writers that explain modes and work in any thread."""
    df.__class__ = _explaining_frame(type(df))  # type: ignore[arg-type]
    return df


def check_mode(mode: str | None) -> None:
    """ConfigError unless rows may be appended."""
    reason = _REFUSED.get(None if mode is None else mode.lower())
    if reason is not None:
        raise ConfigError(reason)


@cache
def _explaining_frame(frame: type) -> type:
    class RoutedDataFrame(frame):  # type: ignore[misc]
        @property
        def write(self) -> Any:
            writer = super().write
            writer.__class__ = _explaining_writer(type(writer))  # type: ignore[arg-type]
            writer.routed_session = self.sparkSession
            return writer

        @property
        def writeStream(self) -> Any:  # noqa: N802
            writer = super().writeStream
            writer.__class__ = _activating_writer(type(writer))  # type: ignore[arg-type]
            writer.routed_session = self.sparkSession
            return writer

    return RoutedDataFrame


@cache
def _explaining_writer(writer: type) -> type:
    class RoutedWriter(writer):  # type: ignore[misc]
        _named: tuple[str | None, str | None] = (None, None)
        """Format and mode, as far as they are given."""

        def format(self, source: str) -> Any:
            self._named = (source, self._named[1])
            return super().format(source)

        def mode(self, saveMode: str | None) -> Any:  # noqa: N803
            self._named = (self._named[0], saveMode or self._named[1])
            return super().mode(saveMode)

        def save(
            self,
            path: str | None = None,
            format: str | None = None,  # noqa: A002
            mode: str | None = None,
            *more: Any,
            **options: Any,
        ) -> None:
            if (format or self._named[0] or "").lower() == _FORMAT:
                check_mode(mode or self._named[1])
            activate(self.routed_session)
            super().save(path, format, mode, *more, **options)

    return RoutedWriter


@cache
def _activating_writer(writer: type) -> type:
    class RoutedStreamWriter(writer):  # type: ignore[misc]
        def start(self, *given: Any, **options: Any) -> Any:
            activate(self.routed_session)
            return super().start(*given, **options)

    return RoutedStreamWriter
