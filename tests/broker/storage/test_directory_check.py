"""`fencepost check`: an intact directory has no findings, and each change is found with advice."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fencepost.broker.storage.directory_check import DirectoryCheck, Finding
from fencepost.broker.storage.directory_lock import DirectoryLock
from fencepost.cli.app import app
from fencepost.log.names import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, file_name, offsets_with
from fencepost.records.batch import split_batches
from fencepost.records.saved_point import FILE_NAME as SAVED_POINT
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import batch_of, create_topic, produce
from tests.transactions.protocol import TV1, TV2
from tests.transactions.wire import WireProducer

pytestmark = pytest.mark.usefixtures("quiet")


def worked(durability: str = "os") -> Stage:
    """A directory with every kind of file."""
    stage = Stage(durability=durability).start()
    create_topic(stage, "t", settings={"internal.segment.bytes": "20000"})
    for number in range(60):
        produce(stage, "t", batch_of(b"x" * 1000 + b"%d" % number))
    for name, protocol in (("a", TV1), ("b", TV2)):
        producer = WireProducer(stage, name, protocol).initialise()
        for commit in (True, False):
            producer.send("t", b"value")
            producer.send_offsets("g", {("t", 0): 1})
            producer.end(commit=commit)
    stage.advance(2_000)
    return stage


def found(stage: Stage) -> list[Finding]:
    return list(DirectoryCheck(stage.disk, FOLDER, lambda what: None).run())


def content(stage: Stage, folder: str = FOLDER) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name in stage.disk.list_dir(folder):
        try:
            files[f"{folder}/{name}"] = stage.disk.read_file(f"{folder}/{name}")
        except IsADirectoryError:
            files |= content(stage, f"{folder}/{name}")
    return files


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_an_unchanged_directory_is_sound_and_is_not_modified(ending: str) -> None:
    stage = worked()
    getattr(stage, ending)()
    before = content(stage)
    assert found(stage) == []
    assert content(stage) == before


def test_damage_in_every_kind_of_file_is_reported_with_its_name() -> None:
    stage = worked()
    stage.stop()
    files = content(stage)
    for path, data in files.items():
        name = path.removeprefix(FOLDER + "/")
        if not data or name.startswith("."):
            continue
        for spoiled in (bytes(len(data)), data[: len(data) // 2] + b"\xff" * 9):
            stage.disk.write_file(path, spoiled, sync=True)
            named = [finding.file for finding in found(stage)]
            folder = name.partition("/")[0]
            wanted = {name, folder, name.replace(".timeindex", ".index")}
            assert wanted & set(named), f"{name}: {named}"
            stage.disk.write_file(path, data, sync=True)
    assert found(stage) == []


def test_a_torn_tail_is_a_note_and_not_damage() -> None:
    stage = worked()
    stage.kill()
    path = next(
        p for p in sorted(content(stage), reverse=True) if "/t-0/" in p and p.endswith(".log")
    )
    stage.disk.write_file(path, stage.disk.read_file(path) + b"torn", sync=True)
    (note,) = found(stage)
    assert not note.is_damage
    assert "torn tail of 4 bytes" in note.problem


def test_a_log_that_lacks_whole_batches_at_its_end_is_damaged() -> None:
    """Every byte that is left passes its check."""
    for topic in ("t", "__transaction_state", "__consumer_offsets"):
        stage = worked()
        stage.stop()
        folder = next(
            path
            for path in (f"{FOLDER}/{topic}-{index}" for index in range(2))
            if stage.disk.exists(path)
        )
        path = f"{folder}/{file_name(offsets_with(stage.disk.list_dir(folder), LOG)[-1], LOG)}"
        data = stage.disk.read_file(path)
        last = split_batches(data)[-1].size_bytes
        stage.disk.write_file(path, data[:-last], sync=True)
        problems = [finding.problem for finding in found(stage) if finding.is_damage]
        assert any("ends at offset" in problem for problem in problems), (topic, problems)


@pytest.mark.parametrize("witness", ["saved-point", ".index", ".snapshot"])
def test_each_file_beside_a_log_is_a_witness_of_its_end(witness: str) -> None:
    stage = worked()
    stage.stop()
    folder = f"{FOLDER}/t-0"
    base = offsets_with(stage.disk.list_dir(folder), LOG)[-1]
    path = f"{folder}/{file_name(base, LOG)}"
    for name in stage.disk.list_dir(folder):
        others = (SAVED_POINT, INDEX, TIME_INDEX, SNAPSHOT, TXN_INDEX)
        if name.endswith(others) and not name.endswith(witness) and not name.endswith(TIME_INDEX):
            stage.disk.remove(f"{folder}/{name}")
    stage.disk.remove(f"{FOLDER}/recovery-point-offset-checkpoint")
    first = split_batches(stage.disk.read_file(path))[0].size_bytes
    stage.disk.write_file(path, stage.disk.read_file(path)[:first], sync=True)
    problems = [finding.problem for finding in found(stage) if finding.is_damage]
    assert any("ends at offset" in problem and witness in problem for problem in problems), problems


def test_the_command_has_text_and_json_output_and_refuses_a_directory_in_use(
    tmp_path: Path,
) -> None:
    stage = worked()
    stage.stop()
    for path, data in content(stage).items():
        target = tmp_path / path.removeprefix(FOLDER + "/")
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)
    run = CliRunner().invoke
    sound = run(app, ["check", str(tmp_path)])
    assert (sound.exit_code, "is sound" in sound.output) == (0, True)
    log = tmp_path / "t-0" / f"{0:020d}.log"
    changed = bytearray(log.read_bytes())
    changed[500] ^= 1
    log.write_bytes(changed)
    spoiled = run(app, ["check", str(tmp_path)])
    assert spoiled.exit_code == 1
    assert "offsets 0 to 0" in spoiled.output
    told = json.loads(run(app, ["check", "--json", str(tmp_path)]).output)
    assert [(each["kind"], each["file"]) for each in told] == [("damage", f"t-0/{0:020d}.log")]
    assert not os.path.exists(tmp_path / ".lock")
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(Exception, match="in use by a broker"):
        run(app, ["check", str(tmp_path)], catch_exceptions=False)
    lock.release()
