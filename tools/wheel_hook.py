"""Puts compiled modules beside their sources in the wheel; see compile_hot_path.py.

Python prefers the compiled ones. The sources stay in the wheel for tracebacks, type checkers and
readers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModules(BuildHookInterface[Any]):
    """The build hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("FENCEPOST_SRC")
        if version != "standard" or not folder:
            return  # An editable install runs the sources: compiled ones would hide what is edited.
        source = Path(self.root, folder)
        modules = [*source.rglob("*.so"), *source.rglob("*.pyd")]
        if modules:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
        for module in modules:
            build_data["force_include"][str(module)] = module.relative_to(source).as_posix()
