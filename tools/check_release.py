"""Builds what would be published, and checks it: `make release-check`. Nothing is uploaded.

It builds the source distribution, the pure wheel from that source distribution, and, where there is
a C compiler, the compiled wheel; then it looks at files and metadata, renders the description as
PyPI does, and tries each wheel in a clean environment. The wheels for other platforms come from
`make wheels`.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from email.message import Message
from pathlib import Path
from typing import Any, Final

from tools.compile_hot_path import HOT_PATH, compile_hot_path, why_not

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
TARGET: Final = ROOT / "build" / "release"
PACKAGES: Final = ("fencepost", "fencepost_examples", "pyspark_fencepost")
EXTRAS: Final = {"connect", "java", "postgres", "re2", "secure-tests", "spark"}
IN_SDIST: Final = (
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints.txt",
    "docs/start.md",
    "pyproject.toml",
    "src/fencepost/py.typed",
    "tests/conftest.py",
    "tools/readme_hook.py",
    "tools/wheel_hook.py",
)
_EXTENSIONS: Final = (".so", ".pyd")
_TARGET_OF_LINK: Final = re.compile(r'\b(?:href|src)="([^"]*)"')
_PYTHON: Final = re.compile(r"Programming Language :: Python :: 3\.(\d+)")


def project() -> dict[str, Any]:
    """The tables of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


# -- wheels


def metadata_of(wheel: Path) -> Message:
    """The fields of a wheel's METADATA; the body is the description."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_string(archive.read(name).decode("utf-8"))


def problems_of_wheel(wheel: Path, *, compiled: bool) -> Iterator[str]:
    """What is wrong with the files and the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if not name.endswith("/")}
        folder = next(name.split("/")[0] for name in files if ".dist-info/" in name)
        entry_points = ConfigParser()
        if f"{folder}/entry_points.txt" in files:
            entry_points.read_string(archive.read(f"{folder}/entry_points.txt").decode())
    extensions = {name for name in files if name.endswith(_EXTENSIONS)}
    yield from _wrong_files(files - extensions, folder)
    yield from _wrong_extensions(extensions, compiled=compiled)
    is_pure = wheel.name.endswith("-py3-none-any.whl")
    if is_pure == compiled:
        yield f"its name says that it is {'pure' if is_pure else 'compiled'}"
    wanted = project()["project"]
    for group, entries in {
        "console_scripts": wanted["scripts"],
        **wanted["entry-points"],
    }.items():
        if not entry_points.has_section(group) or dict(entry_points[group]) != entries:
            yield f"its entry points lack {group}: {entries}"
    yield from problems_of_metadata(metadata_of(wheel))


def _wrong_files(files: set[str], folder: str) -> Iterator[str]:
    sources = {
        path.relative_to(SOURCE).as_posix()
        for package in PACKAGES
        for path in (SOURCE / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    typed = {f"{package}/py.typed" for package in PACKAGES}
    for name in sorted((sources | typed) - files):
        yield f"it lacks {name}"
    own = {name for name in files if name.startswith(f"{folder}/")}
    for name in sorted(files - sources - own):
        yield f"it has {name}, which is not in src"
    if f"{folder}/licenses/LICENSE" not in own:
        yield "it lacks the licence"


def _wrong_extensions(extensions: set[str], *, compiled: bool) -> Iterator[str]:
    if not compiled:
        yield from (f"it is pure, but has {name}" for name in sorted(extensions))
        return
    modules = {name.partition(".")[0] for name in extensions}
    hot_path = {f"fencepost/{module.removesuffix('.py')}" for module in HOT_PATH}
    yield from (f"{name}.py is not compiled" for name in sorted(hot_path - modules))
    # Beside them there is one module, which has the code of all of them.
    shared = sorted(modules - hot_path)
    if len(shared) != 1 or not shared[0].endswith("__mypyc"):
        yield f"it has compiled modules that are not of the hot path: {shared}"


# -- metadata


def problems_of_metadata(metadata: Message) -> Iterator[str]:
    """What is wrong with the metadata, except what twine finds."""
    wanted = project()["project"]
    for field, value in {
        "Name": wanted["name"],
        "Version": wanted["version"],
        "Summary": wanted["description"],
        "Requires-Python": wanted["requires-python"],
        "License-Expression": wanted["license"],
        "License-File": "LICENSE",
        "Description-Content-Type": "text/markdown",
    }.items():
        if metadata[field] != value:
            yield f"{field} is {metadata[field]!r} instead of {value!r}"
    version = f'__version__ = "{wanted["version"]}"'
    if version not in (SOURCE / "fencepost" / "__init__.py").read_text(encoding="utf-8"):
        yield f"fencepost.__version__ is not {wanted['version']}"
    extras = set(metadata.get_all("Provides-Extra", []))
    if extras != EXTRAS:
        yield f"its extras are {sorted(extras)} instead of {sorted(EXTRAS)}"
    tried = {f"cp3{minor}" for minor in _PYTHON.findall("\n".join(wanted["classifiers"]))}
    built = {name.removesuffix("-*") for name in project()["tool"]["cibuildwheel"]["build"]}
    if tried != built:
        yield f"it names {sorted(tried)}, and cibuildwheel builds {sorted(built)}"


def relative_links(page: str) -> list[str]:
    """Links and pictures of a rendered page that lead nowhere on another site."""
    targets = _TARGET_OF_LINK.findall(page)
    return [target for target in targets if not target.startswith(("#", "https:", "http:"))]


def problems_of_page(metadata: Message) -> Iterator[str]:
    """What PyPI would not show as it is meant."""
    from readme_renderer import markdown

    page = markdown.render(str(metadata.get_payload()))
    if page is None:
        yield "PyPI cannot render the description"
        return
    yield from (f"the description links to {target}" for target in relative_links(page))


# -- the source distribution


def problems_of_sdist(sdist: Path) -> Iterator[str]:
    """What is missing in a source distribution, and what is too much."""
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    yield from (f"it lacks {name}" for name in IN_SDIST if name not in files)
    if not (ROOT / ".git").exists():
        return
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    added = files - {"PKG-INFO"} - set(listed.stdout.split("\0"))
    yield from (f"it has {name}, which is not committed" for name in sorted(added))


# -- the whole


def main() -> None:
    shutil.rmtree(TARGET / "dist", ignore_errors=True)
    found: list[str] = []
    _say("1/5 the source distribution, and the pure wheel from it")
    _build(compiled="")
    ((sdist,), (pure,)) = ([*TARGET.glob("dist/*.tar.gz")], [*TARGET.glob("dist/*.whl")])
    wheels = {pure: False}
    missing = why_not()
    if missing is None:
        _say("2/5 the compiled wheel")
        _build("--wheel", compiled=str(compile_hot_path()))
        (wheel,) = set(TARGET.glob("dist/*.whl")) - {pure}
        wheels[wheel] = True
    else:
        _say(f"2/5 no compiled wheel: {missing}")
    _say("3/5 files and metadata")
    _run("-m", "twine", "check", "--strict", *map(str, [sdist, *wheels]))
    found += [f"{sdist.name}: {problem}" for problem in problems_of_sdist(sdist)]
    for wheel, is_compiled in wheels.items():
        problems = [*problems_of_wheel(wheel, compiled=is_compiled)]
        problems += problems_of_page(metadata_of(wheel))
        found += [f"{wheel.name}: {problem}" for problem in problems]
        if is_compiled and sys.platform == "linux":
            _run("-m", "auditwheel", "show", str(wheel))
    _say("4/5 what cibuildwheel would build")
    for platform in ("linux", "macos"):
        _run("-m", "cibuildwheel", "--platform", platform, "--print-build-identifiers")
    _say("5/5 each wheel in a clean environment")
    for wheel, is_compiled in wheels.items():
        _try(wheel, compiled=is_compiled)
    if found:
        sys.exit("\n".join(found))
    _say("What would be published, and nothing was:")
    for path in (sdist, *wheels):
        _say(f"  {path.relative_to(ROOT)}")


def _build(*kinds: str, compiled: str) -> None:
    """Without a kind: the source distribution, and the wheel from it, as pip would build it."""
    options = ["--no-isolation", "--outdir", str(TARGET / "dist")]
    environment = {**os.environ, "FENCEPOST_SRC": compiled}
    command = [sys.executable, "-m", "build", *kinds, *options, str(ROOT)]
    ended = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, cwd=ROOT
    )
    if ended.returncode:
        sys.exit(f"{ended.stdout}{ended.stderr}\nThe build failed: {' '.join(command)}")


def _try(wheel: Path, *, compiled: bool) -> None:
    folder = TARGET / "try"
    venv.create(folder, with_pip=True, clear=True)
    python = str(folder / "bin" / "python")
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    _run("-m", "pip", "install", "--quiet", *constraints, str(wheel), python=python)
    _run("tools/try_wheel.py", *(["--compiled"] if compiled else []), python=python)


def _run(*arguments: str, python: str = sys.executable) -> None:
    # Without the path of this process, which may have the sources on it.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if subprocess.run([python, *arguments], check=False, cwd=ROOT, env=environment).returncode:
        sys.exit(f"python {' '.join(arguments)} failed")


def _say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    main()
