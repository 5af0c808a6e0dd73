"""docs/guide/testing.md and testing-asyncio.md: their examples, as another project's tests.

The job on Spark runs in tests/spark/test_docs.py.
"""

from __future__ import annotations

import os
import re

import pytest

from tools.fencepost_process import ROOT

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(("name", "at_least"), [("testing", 12), ("testing-asyncio", 2)])
def test_the_examples_of_the_guide_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str, at_least: int
) -> None:
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    page = (ROOT / "docs" / "guide" / f"{name}.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    pytester.makeconftest('pytest_plugins = ["fencepost.testing.pytest_plugin"]')
    pytester.makepyfile("\n\n".join(examples))
    count = len(re.findall(r"^def test_", "\n".join(examples), re.MULTILINE))
    ended = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    ended.assert_outcomes(passed=count)
    assert count >= at_least
