"""The guides' methods: exactly theirs, replacements of what cannot run, table and picture, and a real run."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.commands.guide import run
from autotune.commands.guide.ladder import LADDERS, Ladder, methods_for
from autotune.commands.guide.run import FILES, check_any_fits, clear, run_guide
from autotune.commands.guide.table import ladder_lines, latest_line
from autotune.core import Configuration, InvalidRequest, Measurement, Outcome, read_json
from autotune.core.errors import NothingFits
from autotune.core.note import Note, NoteKind
from autotune.probe.order import Timing
from autotune.study.store import REQUEST
from tests.makers import ALLOWED, GIB, MIB, cpu, ended, gpu, workload
from tests.replay_probe import ReplayProbe, recorded

LADDER = LADDERS["2022"].methods
BERT_LARGE = {"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24}


def ladder(environment: Any = None, size: int = 4, year: str = "2022", **facts: Any) -> Ladder:
    """The ladder of a small model before its first measurement."""
    guide = LADDERS[year]
    environment = environment or cpu()
    known = workload(**{"task": guide.task, "sequence_length": 512, **facts})
    methods = tuple(methods_for(guide, environment, known))
    return Ladder(
        guide,
        methods,
        known,
        environment,
        size,
        20 * GIB,
        19 * GIB,
        notes=(Note(NoteKind.RANDOM_WEIGHTS),),
        folder="reports/guide",
    )


def world(of: Configuration) -> Measurement:
    """Half precision doubles the speed, accumulation and checkpointing cost some of it and save memory."""
    settings = of.values
    speed = (
        10.0 * (2.0 if settings["precision"] != "fp32" else 1.0) * (0.7 if settings["checkpointing"] == "full" else 1.0)
    )
    peak = (4000 if of.gradient_accumulation_steps > 1 else 14000) * MIB
    return recorded(of, speed, peak, 19 * GIB)


def names(of: Ladder) -> list[str]:
    return [method.name for method in of.methods]


def row(lines: list[str], name: str) -> list[str]:
    """The words of the table's row of that name (the first: the guides' own figures follow), the name left out."""
    line = next(line for line in lines if re.match(re.escape(name) + r"\s{2,}|" + re.escape(name) + r" +[-\d]", line))
    return line[len(name) :].split()


# The methods ------------------------------------------------------------------------------------------------------


def test_every_method_of_the_guides_has_their_figures_and_the_global_batch_is_exact() -> None:
    for method in LADDER:
        assert method.theirs is not None
        assert method.configuration(1000).global_batch_size == 1000
    assert [method.configuration(8).gradient_accumulation_steps for method in LADDER] == [1, 4, 4, 1, 4, 1, 4, 1, 4]


def test_on_a_cpu_each_fp16_method_is_ruled_out_with_its_reason_and_bf16_follows_it() -> None:
    methods = ladder().methods
    out = [method for method in methods if method.ruled_out]
    assert [method.name for method in out] == [
        method.name for method in LADDER if method.settings["precision"] == "fp16"
    ]
    assert {method.ruled_out for method in out} == {"precision fp16: trains in fp32 on a CPU"}
    for item in out:
        follows = methods[methods.index(item) + 1]
        assert (follows.instead_of, follows.theirs) == (item.name, None)
        assert follows.name == item.name.replace("fp16", "bf16")
        assert follows.micro_steps == item.micro_steps
        assert follows.settings == {**item.settings, "precision": "bf16"}


def test_bf16_stands_in_only_where_it_can_run_itself() -> None:
    old = gpu(precisions={"fp32": None, "fp16": "broken", "bf16": "needs Ampere"})
    assert names(ladder(old)) == [method.name for method in LADDER]
    without = cpu(optimizers=dict.fromkeys(("adamw_torch", "adafactor")) | {"adamw_bnb_8bit": "not installed"})
    out = {method.name: method.ruled_out for method in ladder(without).methods if "8-bit" in method.name}
    assert out == {
        "8-bit Adam": "optimizer adamw_bnb_8bit: not installed",
        "8-bit Adam + fp16 + GA + GC": "precision fp16: trains in fp32 on a CPU; optimizer adamw_bnb_8bit: not installed",
    }


def test_a_model_without_checkpointing_says_so_at_its_rungs() -> None:
    out = [method for method in ladder(gpu(), supports_checkpointing=False).methods if method.ruled_out]
    assert {method.settings["checkpointing"] for method in out} == {"full"}
    assert "does not support activation checkpointing" in out[0].ruled_out


def test_todays_rungs_add_to_those_before_them_that_can_run_and_say_what_changes_learning() -> None:
    todays = ladder(gpu(), year="2026")
    before: dict[str, Any] = {}
    for method in todays.methods:
        assert before.keys() <= method.settings.keys()
        before = before if method.ruled_out else dict(method.settings)
    rungs = {row.method.name: row for row in todays.rows}
    assert "not tried" in rungs["padded"].method.ruled_out
    assert rungs["padded"].learning == ()
    assert rungs["+ GC"].method.settings == {"sdpa_kernel": "cudnn", "checkpointing": "full"}
    assert rungs["+ QLoRA"].method.settings == {**rungs["+ 8-bit AdamW"].method.settings, "quantization": "nf4"}
    assert "lora" in rungs["+ LoRA"].learning
    assert rungs["+ compile"].learning == ()
    rates = [row.method.theirs.speed for row in rungs.values() if row.method.theirs]
    assert rates[3] / rates[0] == pytest.approx(4.39, abs=0.01)


# Measuring ------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured_ladder(tmp_path: Path) -> Ladder:
    """A CPU's ladder, measured in a recorded world."""
    return run_guide(ladder(), ReplayProbe(world), tmp_path)


def test_every_micro_step_of_every_method_runs_and_none_is_told_to_end_early(tmp_path: Path) -> None:
    probe = ReplayProbe(world)
    done = run_guide(ladder(), probe, tmp_path)
    able = [method.configuration(4) for method in done.methods if not method.ruled_out]
    assert [asked for asked, _ in probe.asked] == able
    assert all(options.slot.round and options.best_so_far is None for _, options in probe.asked)


def test_an_interrupt_passes_and_what_is_known_lies_in_the_folder(tmp_path: Path) -> None:
    def probe(configuration: Configuration) -> Measurement:
        if configuration.values["precision"] == "fp16":
            raise KeyboardInterrupt
        return world(configuration)

    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_guide(ladder(gpu()), ReplayProbe(probe), tmp_path, seen.append)
    told = read_json(tmp_path / "guide.json")
    assert [item["outcome"] for item in told["rungs"]] == ["completed"] * 3 + ["not measured"] * 6
    assert len(seen) == 3


def test_a_method_that_does_not_fit_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    done = run_guide(ladder(gpu()), ReplayProbe(lambda of: recorded(of, 5.0, peak(of), ALLOWED)), tmp_path)
    assert [item.method.name for item in done.feasible] == [
        method.name for method in LADDER if method.settings["checkpointing"] == "full"
    ]
    lines = ladder_lines(done)
    assert row(lines, "vanilla") == ["out", "of", "memory", "-", "-", "-", "execution"]
    assert any(line.startswith("vanilla, GA, fp16") for line in lines)
    check_any_fits(done)


def peak(of: Configuration) -> int:
    return 900 * MIB if of.values["checkpointing"] == "full" else 2000 * MIB


@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY, Outcome.CRASHED])
def test_a_ladder_without_a_single_run_is_measured_and_nothing_that_fits(outcome: Outcome, tmp_path: Path) -> None:
    done = run_guide(ladder(gpu()), ReplayProbe(lambda of: ended(outcome, reason="the same of all")), tmp_path)
    assert [trial.measurement.outcome for trial in done.trials] == [outcome] * len(LADDER)
    with pytest.raises(NothingFits, match="No method completed"):
        check_any_fits(done)


# Text and files -------------------------------------------------------------------------------------------------


def test_the_table_is_the_golden_one_in_eighty_columns(
    measured_ladder: Ladder, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    speeds = iter([10.0, 8.0, 6.0])
    few = run_guide(
        ladder(gpu(), name="bert-large", model_config=BERT_LARGE),
        ReplayProbe(lambda of: recorded(of, next(speeds, 5.0), peak(of), ALLOWED, steps=2)),
        tmp_path / "few",
    )
    texts = [measured_ladder, few]
    assert max(len(line) for text in texts for line in ladder_lines(text)) <= 80
    golden("guide.txt", "\n\n".join("\n".join([*ladder_lines(text), "", latest_line(text)]) for text in texts) + "\n")


def test_json_and_page_hold_every_figure(measured_ladder: Ladder, tmp_path: Path) -> None:
    told = read_json(tmp_path / "guide.json")
    assert told == json.loads(json.dumps(measured_ladder.to_dict(), allow_nan=False))
    assert [item["method"] for item in told["rungs"]] == names(measured_ladder)
    assert told["rungs"][0]["samples_per_second"] == pytest.approx(10.0, rel=0.01)
    page = (tmp_path / "guide.md").read_text()
    assert page.count("| vanilla |") == 2
    assert "guide.svg" in page
    picture = (tmp_path / "guide.svg").read_text()
    assert picture.count("<circle") == len(measured_ladder.feasible)
    assert "Adafactor + bf16 + GA + GC" in picture


def test_a_name_and_a_reason_are_text_in_the_page(tmp_path: Path) -> None:
    def crashing(of: Configuration) -> Measurement:
        return world(of) if of.gradient_accumulation_steps == 1 else ended(Outcome.CRASHED, reason="=1+1 | *b*")

    run_guide(ladder(gpu(), name="a *b* <i>"), ReplayProbe(crashing), tmp_path)
    page = (tmp_path / "guide.md").read_text()
    assert page.startswith("# The guides' ladder: a \\*b\\* &lt;i&gt;\n\na \\*b\\* &lt;i&gt; (")
    assert r"crashed: =1+1 \| \*b\*" in page
    assert "<i>" not in page


# The real thing -------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_real_guide_prints_the_ladder_names_its_table_and_takes_the_place_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TIMING", Timing(untimed_least=1, untimed_most=1, timed_least=3, timed_most=3))
    folder = tmp_path / "reports" / "guide-bert-mini-cpu"
    (folder / "probes" / "0042").mkdir(parents=True)
    words = ["--device", "cpu", "--sequence-length", "8", "--output-dir", str(tmp_path / "reports")]
    done = CliRunner().invoke(app, ["guide", "bert-mini", *words])
    assert done.exit_code == 0, done.output
    table = done.stdout[done.stdout.index("method ") :].splitlines()
    for method in LADDER:
        assert ("ruled" in row(table, method.name)) is (method.settings["precision"] == "fp16"), method.name
    assert "silently trains in fp32" in done.stdout
    assert f"Table: {folder}/guide.md" in done.stdout
    told = read_json(folder / "guide.json")
    assert (told["task"], told["sequence_length"], told["global_batch_size"]) == ("sequence-classification", 8, 4)
    ran = [item for item in told["rungs"] if item["outcome"] == "completed"]
    assert len(ran) == 9
    for one in ran:
        place = folder / "probes" / f"{told['rungs'].index(one):04d}"
        measured = Measurement.from_dict(read_json(place / "measurement.json"))
        assert measured.accumulation_steps_run == one["configuration"]["gradient_accumulation_steps"]
        assert measured.settings["precision"] == one["configuration"]["settings"]["precision"]
        assert one["samples_per_second"] == pytest.approx(measured.samples_per_second)
    assert {path.name for path in folder.iterdir()} == {".lock", "probes", *FILES}
    assert not (folder / "probes" / "0042").exists()


def test_a_folder_that_holds_a_study_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "guide-bert-mini-cpu"
    folder.mkdir()
    (folder / REQUEST).write_text("{}")
    with pytest.raises(InvalidRequest, match="holds a study"):
        clear(folder)
    assert (folder / REQUEST).read_text() == "{}"
