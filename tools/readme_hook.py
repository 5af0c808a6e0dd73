"""The README for PyPI, where a relative link leads nowhere.

In a checkout the README links to files of the tree. PyPI has none of them, and they are at no
public address yet. So in the metadata of a distribution a link to a file becomes its text, and a
picture its description. Links to other sites and to headings of the page stay.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

WHERE_THE_PAGES_ARE: Final = "The pages named here are part of the source distribution."

_CODE_OR_LINK: Final = re.compile(
    r"""
    ^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ ]*$         # A block of code, and
    | (?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)       # code in a sentence: both stay.
    | !?\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_STAYS: Final = re.compile(r"#|[a-z][a-z0-9+.-]*:", re.IGNORECASE)


class ReadmeForPyPI(MetadataHookInterface):
    """The metadata hook."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_pypi(text)}


def for_pypi(readme: str) -> str:
    """The same text without links to files."""
    changed = _CODE_OR_LINK.sub(_without_file, readme)
    if changed == readme:
        return readme
    return f"{changed.rstrip()}\n\n{WHERE_THE_PAGES_ARE}\n"


def _without_file(found: re.Match[str]) -> str:
    target = found["target"]
    if target is None or _STAYS.match(target):
        return found[0]
    return found["text"]
