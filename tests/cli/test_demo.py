"""`fencepost demo`: a short run, Ctrl-C, and the message without Spark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.base.svg import FONT_SIZE, text_width
from fencepost.broker.settings.config import BrokerConfig
from fencepost.cli.app import app
from fencepost.cli.commands import demo as demo_command
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.demo import run as demo_run
from fencepost.demo.cluster import CONNECT_TIMEOUTS
from fencepost.demo.display import Clock, Lines
from fencepost.demo.interrupt import Interrupted, Interruption
from fencepost.demo.picture import LEFT, RIGHT, WIDTH, draw
from fencepost.demo.plan import (
    IN_TURN,
    IN_TURN_OF_SEVERAL,
    LAST_KILL,
    LONGEST_OUTAGE_MS,
    PAUSE_MS,
    Aim,
    Victim,
    plan_kills,
    plan_loader_kill,
    sides_of,
)
from fencepost.demo.progress import count_decided
from fencepost.demo.report import WIDTHS, has_passed, write_report
from fencepost.demo.run import DemoOptions, History
from fencepost.demo.several_brokers import Target, choose
from fencepost.examples.refunds.spark import audit
from fencepost.examples.refunds.spark.audit import QUESTIONS, Findings
from fencepost.examples.refunds.spark.settlements import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.cli.test_demo_processes import wait_until
from tests.refunds.conftest import require_spark
from tests.spark.conftest import environment
from tools.processes import free_port

SIDES = sides_of(compare=True)


def bare_environment(folder: Path) -> dict[str, str]:
    """Returns an environment without an activated venv or PYSPARK_PYTHON, with its own TMPDIR."""
    mine = Path(sys.executable).parent
    paths = os.environ["PATH"].split(os.pathsep)
    found = environment() | {"PATH": os.pathsep.join(p for p in paths if Path(p) != mine)}
    del found["PYSPARK_PYTHON"]
    return found | {"TMPDIR": str(folder)}


def start_demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Starts the demo with its temporary files in this folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "fencepost", "demo", *options],
        env=bare_environment(folder),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_running(folder: Path) -> list[str]:
    """Returns the processes whose environment names the folder, as all of the demo's do."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and str(folder).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
    return found


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"
)


@needs_proc
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_run_with_kills_passes_and_leaves_only_the_picture(tmp_path: Path) -> None:
    """With three brokers; how the only one is killed is in test_demo_processes.

    By the seed an executor is killed, and a broker is paused, rolled and killed, each in a batch
    of its own.
    """
    require_spark()
    folder = tmp_path / "here"
    folder.mkdir()
    options = "--brokers 3 --settlements 2100 --per-batch 300 --kills 4 --seed 2491 --alone"
    demo = start_demo(folder, *options.split(), "--picture", str(tmp_path / "p.svg"))
    said, _ = demo.communicate()
    assert demo.returncode == 0, said
    struck = ["kill -9: broker ", "s: broker ", "roll: broker ", "kill -9: an executor"]
    for each in [*struck, "kill -9: the loader"]:
        assert each in said
    assert "PASSED" in said
    ET.fromstring((tmp_path / "p.svg").read_text())
    assert list(folder.iterdir()) == []
    assert left_running(folder) == []


@needs_proc
@pytest.mark.spark
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("line", "options"),
    [("a broker serves", []), ("Spark starts", []), ("3 brokers serve", ["--brokers", "3"])],
)
def test_ctrl_c_leaves_no_process_and_no_file(
    tmp_path: Path, line: str, options: list[str]
) -> None:
    require_spark()
    demo = start_demo(tmp_path, *options)
    assert demo.stdout is not None
    while line not in demo.stdout.readline():
        assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert "Stopped; nothing is left running." in said
    assert left_running(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@needs_proc
@pytest.mark.spark
@pytest.mark.timeout(120)
def test_a_killed_demo_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    require_spark()
    demo = start_demo(tmp_path)
    assert demo.stdout is not None
    while "Spark starts" not in demo.stdout.readline():
        assert demo.poll() is None
    wait_until(lambda: any("SparkSubmit" in line for line in left_running(tmp_path)))
    demo.kill()
    demo.communicate()
    wait_until(lambda: left_running(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []


def test_without_spark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "NEEDED", ("a_library_that_nobody_has",))
    result = CliRunner().invoke(app, ["demo"])
    assert isinstance(result.exception, FencepostError)
    assert "pip install 'fencepost[spark]'" in str(result.exception)
    assert "fencepost demo --broker-only" in str(result.exception)


def test_the_folder_given_to_keep_must_be_empty(tmp_path: Path) -> None:
    require_spark()
    (tmp_path / "something").touch()
    result = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path)])
    assert isinstance(result.exception, FencepostError)
    assert "is not empty" in str(result.exception)


def test_an_unreachable_broker_is_named_with_the_option_to_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_spark()
    monkeypatch.setitem(CONNECT_TIMEOUTS, "default.api.timeout.ms", 300)
    address = f"127.0.0.1:{free_port()}"
    options = ["--bootstrap-servers", address, "--picture", str(tmp_path / "p.svg")]
    result = CliRunner().invoke(app, ["demo", *options])
    assert isinstance(result.exception, FencepostError)
    assert f"no broker answers at {address}" in str(result.exception)
    assert "correct --bootstrap-servers" in str(result.exception)


def test_the_broker_only_demo_needs_no_spark() -> None:
    result = CliRunner().invoke(app, ["demo", "--broker-only"])
    assert result.exit_code == 0, result.output
    assert "0 lost, 0 doubled" in result.output


def test_a_seed_repeats_the_plan_and_each_process_is_killed_on_both_sides() -> None:
    plan = plan_kills(7, 6, IN_TURN, SIDES)
    assert plan == plan_kills(7, 6, IN_TURN, SIDES)
    assert plan != plan_kills(8, 6, IN_TURN, SIDES)
    for victim in IN_TURN:
        struck = [kill for kill in plan if kill.victim is victim]
        assert {kill.side for kill in struck} == set(SIDES)
    shares = [kill.share for kill in plan]
    assert shares == sorted(shares)
    assert all(0 < share <= LAST_KILL for share in shares)


def test_of_several_brokers_a_coordinator_and_a_leader_are_killed_paused_and_rolled() -> None:
    plan = plan_kills(7, 10, IN_TURN_OF_SEVERAL, SIDES)
    for victim in IN_TURN_OF_SEVERAL:
        struck = [kill for kill in plan if kill.victim is victim]
        assert {kill.side for kill in struck} == set(SIDES)
        assert [kill.aim for kill in struck] == [Aim.COORDINATOR, Aim.LEADER]
    longest = PAUSE_MS + LONGEST_OUTAGE_MS
    assert longest < BrokerConfig({"node.id": "1"}).broker_session_timeout_ms


@pytest.mark.parametrize(
    ("aim", "role"),
    [
        (Aim.COORDINATOR, "the transaction coordinator of 'refunds'"),
        (Aim.LEADER, "the leader of refund-audit-0"),
        (Aim.ANY, ""),
    ],
)
def test_the_broker_to_hit_is_the_one_that_has_the_role(aim: Aim, role: str) -> None:
    with fencepost.Broker() as broker, connect(broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("refund-audit", 1)])
        cluster.init_producer_id("refunds")
        (broker_id,) = cluster.metadata().brokers

        def target(serving: list[int]) -> Target:
            return choose(
                aim,
                cluster,
                serving,
                transactional_id="refunds",
                topic="refund-audit",
                rng=Random(1),
            )

        assert target([broker_id]) == Target(broker_id, role)
        # If that one does not serve at the moment, another is hit.
        assert target([broker_id + 1]) == Target(broker_id + 1)


@pytest.mark.parametrize("other", ["--broker-only", "--bootstrap-servers=localhost:1"])
def test_only_the_demos_own_brokers_can_be_several(other: str) -> None:
    result = CliRunner().invoke(app, ["demo", "--brokers", "3", other])
    assert result.exit_code == 2
    assert other.partition("=")[0] in result.output


def test_a_seed_repeats_the_loader_kill_and_any_load_can_be_hit() -> None:
    assert plan_loader_kill(7, 5) == plan_loader_kill(7, 5)
    assert {plan_loader_kill(seed, 5).load for seed in range(100)} == set(range(5))


@pytest.mark.parametrize("batch_share", [0.3, 0.5, 1.0])
def test_in_a_short_run_kills_come_before_the_last_two_batches(batch_share: float) -> None:
    plan = plan_kills(7, 3, IN_TURN, SIDES, batch_share)
    assert all(kill.share <= max(0, 1 - 2 * batch_share) for kill in plan)


def test_progress_counts_batches_that_the_checkpoint_logged_as_done(tmp_path: Path) -> None:
    assert count_decided(tmp_path) == 0
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch, end in ((0, 10), (1, 25)):
        offsets = f'v1\n{{"batchWatermarkMs":0}}\n{{"settlements":{{"0":{end},"1":5}}}}'
        (tmp_path / "offsets" / str(batch)).write_text(offsets)
    (tmp_path / "commits" / "0").touch()
    assert count_decided(tmp_path) == 15


def a_history(*, doubled: int = 0, lost: int = 0) -> tuple[History, DemoOptions]:
    """Returns a run without violations on one side, and with these on the other."""
    fine = Findings(
        rows={"settlements": 100, "decisions": 100, "refunds": 60},
        wrong=dict.fromkeys(QUESTIONS, 0) | {"settlements behind the committed offsets": 0},
    )
    plain = Findings(
        rows={"settlements": 100, "decisions": 100 + doubled, "refunds": 60 + doubled},
        wrong=dict.fromkeys(QUESTIONS, 0) | {"refunds paid more than once": doubled},
        refunds_too_many=doubled,
        paid_too_much_paise=doubled * 105,
    )
    fine.wrong["settlements without a decision"] = lost
    history = History(
        samples=[(0.0, dict.fromkeys(SIDES, 0)), (50.0, dict.fromkeys(SIDES, 100))],
        kills=[(10.0, Victim.DRIVER), (10.5, Victim.BROKER), (55.0, Victim.LOADER)],
        findings={EXACTLY_ONCE: fine, AT_LEAST_ONCE: plain},
        queries_ended=50.0,
        seconds=61.2,
    )
    return history, DemoOptions(settlements=100, per_batch=10, kills=2, seed=4)


def test_duplicates_without_transactions_are_reported_but_do_not_fail_the_run() -> None:
    history, options = a_history(doubled=7)
    assert has_passed(history, options)
    report = write_report(history, options)
    assert report[0] == "Killed: 1 x driver, 1 x broker, 1 x loader. Seed 4, 61 s."
    assert report[-2].startswith("PASSED: ")
    assert report[-1] == "Without transactions, 7 refunds were paid more than once."
    assert any(line.split()[-2:] == ["0.00", "7.35"] for line in report)
    assert all(len(line) <= 79 for line in report)


def test_the_report_says_how_often_one_of_several_brokers_was_paused_and_rolled() -> None:
    history, options = a_history()
    history.kills += [(56.0, Victim.PAUSED_BROKER), (57.0, Victim.ROLLED_BROKER)]
    options = replace(options, brokers=3)
    report = write_report(history, options)
    assert report[0] == "Killed: 1 x driver, 1 x broker, 1 x loader. Seed 4, 61 s."
    assert report[1] == "Of 3 brokers, one was paused 1 x, rolled 1 x."
    assert "kill -9, pause, roll" in draw(history, options)


def test_every_question_fits_its_column() -> None:
    others = [value for value in vars(audit).values() if isinstance(value, str) and " " in value]
    names = [*QUESTIONS, *(value for value in others if "\n" not in value)]
    assert audit.OFFSETS_AND_OUTPUT in names
    assert max(map(len, names)) + len("  ") <= WIDTHS[0]


def test_a_lost_settlement_is_a_failure() -> None:
    history, options = a_history(lost=1)
    assert not has_passed(history, options)
    assert write_report(history, options)[-1].startswith("FAILED: ")


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (1, 1)])
def test_a_violation_sets_the_exit_code_and_the_picture_is_still_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, code: int
) -> None:
    history, _ = a_history(lost=lost)
    monkeypatch.setattr(demo_command, "_run", lambda options: history)
    options = ["--settlements", "100", "--picture", str(tmp_path / "new" / "p.svg")]
    result = CliRunner().invoke(app, ["demo", *options])
    assert result.exit_code == code, result.output
    ET.fromstring((tmp_path / "new" / "p.svg").read_text())


def test_a_settlement_that_never_reached_the_topic_is_a_failure() -> None:
    history, options = a_history()
    history.findings[EXACTLY_ONCE].rows["settlements"] = 99
    assert not has_passed(history, options)


def test_the_picture_shows_every_kill_and_the_overpaid_amount() -> None:
    drawing = draw(*a_history(doubled=7))
    texts = {element.text: element for element in ET.fromstring(drawing).iter() if element.text}
    assert {"driver", "broker", "loader", "exactly once", "at least once"} <= texts.keys()
    assert any("7 too many: 7.35 rupees" in text for text in texts)
    # The two are half a second apart: their labels must not overlap.
    assert float(texts["broker"].attrib["x"]) - float(texts["driver"].attrib["x"]) >= FONT_SIZE
    assert all(
        LEFT <= float(texts[v.value].attrib["x"]) <= RIGHT for v in Victim if v.value in texts
    )


def test_duplicates_have_their_own_colour_in_the_bar() -> None:
    picture = ET.fromstring(draw(*a_history(doubled=7)))
    bars = {each.get("class"): each for each in picture.iter("{http://www.w3.org/2000/svg}rect")}
    doubled, once = bars["bad"], bars["f0"]
    share = float(doubled.attrib["width"]) / float(once.attrib["width"])
    assert share == pytest.approx(7 / 60, rel=0.02)
    assert "bad" not in draw(*a_history()).partition("</style>")[2]


@pytest.mark.parametrize("doubled", [0, 1, 7_000_000])
def test_no_text_in_the_picture_is_cut_off(doubled: int) -> None:
    history, options = a_history(doubled=doubled)
    history.seconds = 60.0  # Puts the last label at the edge.
    for each in ET.fromstring(draw(history, options)).iter("{http://www.w3.org/2000/svg}text"):
        assert each.text is not None
        width = text_width(each.text, bold="strong" in each.attrib["class"])
        before = {"start": 0.0, "middle": width / 2, "end": width}[each.attrib["text-anchor"]]
        left = float(each.attrib["x"]) - (0 if "transform" in each.attrib else before)
        assert left >= 0, each.text
        assert left + (0 if "transform" in each.attrib else width) <= WIDTH, each.text


def test_progress_lines_are_rate_limited(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(Clock())
    for count in range(5):
        lines.progress({EXACTLY_ONCE: count}, 10)
    assert capsys.readouterr().out.splitlines() == [" 0:00  decided of 10: exactly once 0"]


def test_a_progress_line_is_not_repeated_soon_unless_something_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    lines = Lines(clock)
    for seconds, decided in ((0, 0), (20, 0), (40, 3), (59, 3), (101, 3)):
        monkeypatch.setattr(clock, "_started", time.monotonic() - seconds)
        lines.progress({EXACTLY_ONCE: decided}, 10)
    said = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["0:00", "0:40", "1:41"]


def test_a_shielded_block_finishes_before_the_interrupt_is_raised() -> None:
    steps = []
    with Interruption() as interruption, pytest.raises(Interrupted):
        with interruption.shield():
            os.kill(os.getpid(), signal.SIGTERM)
            deadline = time.monotonic() + 5
            while not interruption.is_requested and time.monotonic() < deadline:
                pass
            steps.append("finished")
        steps.append("not reached")
    assert steps == ["finished"]
