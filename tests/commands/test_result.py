"""What a search found: each method one call downwards, saved and loaded without loss."""

import contextlib
import math
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
from transformers import TrainingArguments

from autotune.commands.result import TuningResult
from autotune.core import InvalidRequest, Outcome, Trial, read_json, write_json
from autotune.core.errors import LossWarning, NothingFits, SearchFailed, UnreadableFile
from autotune.core.loss_curves import Curve, Numerics
from autotune.core.note import Note, NoteKind
from autotune.core.prospect import OptimalityGap
from autotune.core.request import tuning_request
from autotune.core.sanity import SanityCheck
from autotune.core.stop_reason import StopKind, StopReason
from autotune.memory.peak import MemoryPeak, MemorySplit
from autotune.probe.order import ANSWER, ORDER
from autotune.report.evidence import loss_warning
from autotune.report.exports import answer_of
from autotune.space.search_space import RuledOut
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.user_arguments import read_user_arguments
from autotune.study.store import PROSPECT, REQUEST
from tests.makers import configuration, ended, out_of_memory, result, trial, warned, workload
from tests.trainers import CHECKPOINTING

NOTHING_LEFT = StopReason(StopKind.ALL_TESTED)

LIMITED = tuning_request("gpt2-mini", 48, device="cpu", timeout="10m")
"""Of a search that may have had no time for a proof."""


def nothing() -> TuningResult:
    return result([Trial(0, configuration(), out_of_memory(configuration()))])


def kept(**facts: Any) -> TuningResult:
    """A study in which nothing was shown to be faster than the user's settings."""
    trials = [
        trial(0, 10.0, of=configuration(8), confirmed=10.0),
        trial(1, 11.0, of=configuration(16, workers=2), confirmed=11.0, apart=0.02),
    ]
    return result(trials, **facts)


def test_what_is_not_shown_to_be_faster_is_not_applied(tmp_path: Path) -> None:
    own = TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=12,
        gradient_accumulation_steps=4,
        tf32=None,
        use_cpu=True,
        report_to=[],
    )
    made = kept(user_arguments=own)
    assert (made.best.number, made.changes_settings, str(made.speedup)) == (0, False, "1.00x")
    assert "cannot tell whether trial 1 is faster" in made.speedup_reason
    arguments = made.training_arguments()
    changed = {name for name, value in own.to_dict().items() if arguments.to_dict()[name] != value}
    assert changed == {"per_device_train_batch_size", "gradient_accumulation_steps"}, "the sizes that were measured"
    told = made.to_dict()
    assert (told["state"], told["verdict"], told["speedup"], told["speedup_low"]) == (
        "too_noisy",
        "too_noisy",
        1.0,
        None,
    )
    assert answer_of(made) is None


def test_the_answer_for_programs_says_what_was_found_and_how_sure_it_is() -> None:
    found = replace(result(), prospects={2: OptimalityGap(0.1, 0.2, 50)}).to_dict()
    assert (found["state"], found["verdict"], found["left_to_gain"]) == ("improved", "solid", 0.2)
    assert nothing().to_dict()["state"] == "no_answer"
    exhausted = replace(
        result(),
        prospects={2: OptimalityGap(0.0, 0.2, 50)},
        stop=NOTHING_LEFT,
    )
    assert exhausted.to_dict()["left_to_gain"] is None, "its reason says it"


def test_nothing_that_fits_is_an_error_with_advice() -> None:
    with pytest.raises(NothingFits) as caught:
        _ = nothing().best
    assert caught.value.exit_code == 3
    assert caught.value.advice
    with pytest.raises(NothingFits):
        _ = nothing().speedup


def test_a_search_without_its_baseline_says_so() -> None:
    for read in ("baseline", "speedup"):
        with pytest.raises(InvalidRequest, match="baseline"):
            getattr(result([trial(1)]), read)


def with_losses(*flagged: int, notes: tuple[Note, ...] = (), **facts: Any) -> TuningResult:
    """A result whose trials' losses are as fp32's, but for those that are flagged."""
    falling = {1: Curve(tuple(8.0 - step / 10 for step in range(14)))}
    curves = {number: {1: Curve((8.0,) * 14)} if number in flagged else falling for number in (0, 1)}
    return result(numerics=Numerics(falling, curves, notes=notes), **facts)


@pytest.mark.parametrize(
    ("made", "warning"),
    [
        (with_losses(1), "Losses differ from fp32's: after 14 steps the loss is 1 above"),
        (
            with_losses(notes=(Note(NoteKind.BASELINE_FAILS),)),
            "Losses not compared with fp32's: your own settings do not run",
        ),
        (
            result([trial(0), trial(1, 40.0)], request=LIMITED),
            "Losses not compared with fp32's: nothing was measured again",
        ),
        (result(complete=False), "Losses not compared with fp32's: the search did not come to its end"),
    ],
    ids=["flagged", "not compared", "no rounds", "interrupted"],
)
def test_an_answer_that_may_not_learn_as_fp32_does_warns_wherever_it_is_handed_out(
    made: TuningResult, warning: str, tmp_path: Path
) -> None:
    with pytest.warns(LossWarning, match=warning) as caught:
        made.training_arguments(str(tmp_path))
    assert caught[0].filename == __file__
    with pytest.warns(LossWarning, match=warning), contextlib.suppress(InvalidRequest):
        made.apply(None)


@pytest.mark.parametrize(
    "made", [with_losses(), with_losses(0), result()], ids=["as fp32", "another flagged", "of old"]
)
def test_an_answer_that_learns_as_fp32_does_warns_of_nothing(made: TuningResult, tmp_path: Path) -> None:
    assert made.training_arguments(str(tmp_path)).bf16
    assert loss_warning(made) is None


def test_the_baseline_as_answer_is_warned_of_only_where_it_is_flagged() -> None:
    alone = [trial(0, 10.0, of=configuration(8), confirmed=10.0)]
    assert loss_warning(with_losses(notes=(Note(NoteKind.BASELINE_FAILS),), trials=alone)) is None
    assert loss_warning(with_losses(trials=alone)) is None
    assert "which had fallen by" in str(loss_warning(with_losses(0, trials=alone)))


def disqualified_reason() -> list[Trial]:
    """A baseline and a faster trial that may not win."""
    slow, fast = configuration(8), configuration(16, precision="bf16")
    lost = replace(trial(1, 40.0, of=fast, confirmed=40.0), disqualified_reason="its loss differs")
    return [trial(0, 10.0, of=slow, confirmed=10.0), lost]


def test_what_was_faster_and_could_not_win_is_told_everywhere(tmp_path: Path) -> None:
    made = result(disqualified_reason())
    assert made.best.number == 0
    made.save(tmp_path)
    assert [(trial.number, reason) for trial, reason in made.disqualified] == [(1, "its loss differs")]
    told = made.to_dict()
    assert [(left["number"], left["reason"]) for left in told["disqualified"]] == [(1, "its loss differs")]
    assert told["headline"].startswith("The Trainer's defaults are kept")
    for name in ("summary.md", "report.html"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "its loss differs" in text
        assert "--allow-loss-difference" in text


def test_where_all_that_fits_is_barred_the_error_says_why_and_how_to_allow_it() -> None:
    lost = Trial(0, configuration(48), out_of_memory(configuration(48)))
    with pytest.raises(SearchFailed, match="its loss differs") as caught:
        _ = result([lost, disqualified_reason()[1]]).best
    assert "--allow-loss-difference" in caught.value.advice


@dataclass
class Mine(TrainingArguments):
    """Arguments of a user's own class."""

    temperature: float = 1.0


def users(folder: Path, **fields: Any) -> Mine:
    return Mine(
        str(folder / "mine"),
        run_name="my run",
        hub_model_id="me/mine",
        hub_token="hf_secret",
        resume_from_checkpoint="last",
        temperature=0.5,
        report_to="none",
        optim="adamw_torch_fused",
        **fields,
    )


def test_the_training_arguments_are_the_user_s_own_but_for_what_was_tuned(tmp_path: Path) -> None:
    own = users(tmp_path, per_device_eval_batch_size=3)
    found = result(user_arguments=own, sanity_check=SanityCheck(eval_batch_size=16, eval_batches_tried=(16,)))
    made = found.training_arguments()
    assert type(made) is Mine
    changed = {
        field.name for field in fields(made) if field.init and getattr(made, field.name) != getattr(own, field.name)
    }
    assert changed == {
        *("per_device_train_batch_size", "gradient_accumulation_steps", "bf16"),
        *("dataloader_pin_memory", "use_cpu"),
    }
    assert (own.per_device_train_batch_size, own.bf16) == (8, False)
    other = found.training_arguments("there", temperature=2.0, run_name=None)
    assert (other.output_dir, other.temperature, other.run_name, other.bf16) == ("there", 2.0, None, True)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_overrides_win_under_their_older_names_too(tmp_path: Path) -> None:
    for found in (result(), result(user_arguments=users(tmp_path))):
        made = found.training_arguments(str(tmp_path), gradient_checkpointing=True)
        assert (made.gradient_checkpointing, getattr(made, CHECKPOINTING)) == (True, True)
    with pytest.raises(TypeError, match="surprise"):
        result(user_arguments=users(tmp_path)).training_arguments(surprise=1)


def test_without_the_user_s_object_they_are_plain_and_have_what_is_known_of_the_run(tmp_path: Path) -> None:
    made = result(user_arguments={"run_name": "my run", "output_dir": str(tmp_path)}).training_arguments()
    assert (type(made), made.run_name, made.output_dir) == (TrainingArguments, "my run", str(tmp_path))
    assert result().training_arguments().output_dir == "output"


def test_the_user_s_own_arguments_stay_in_memory(tmp_path: Path) -> None:
    found = result(user_arguments=users(tmp_path))
    assert found == replace(found, user_arguments=None)
    assert "user_arguments" not in repr(found)
    folder = found.save(tmp_path / "study")
    for path in folder.rglob("*.*"):
        for text in (b"hf_secret", b"my run", b"me/mine", str(tmp_path).encode()):
            assert text not in path.read_bytes(), path.name
    again = TuningResult.load(folder)
    assert (again.user_arguments, type(again.training_arguments())) == (None, TrainingArguments)


def test_a_saved_result_is_loaded_without_loss_also_from_a_folder_that_moved(tmp_path: Path) -> None:
    crashed = Trial(3, configuration(), ended(Outcome.CRASHED, log_tail="Traceback\n  é\n"))
    made = result([*result().trials, crashed], study_warnings=warned("others held memory"))
    folder = made.save(tmp_path / "study").rename(tmp_path / "moved")
    again = TuningResult.load(folder)
    assert list(again.trials) == list(made.trials)
    assert again.workload == made.workload
    assert again.environment == made.environment
    assert again.request == made.request
    assert list(again.ruled_out) == list(made.ruled_out)
    assert (again.stop_reason, list(again.notes)) == (made.stop_reason, list(made.notes))
    assert again.warnings == warned("others held memory")
    assert again.to_dict() == made.to_dict() | {"folder": str(folder)}
    assert again.to_frame().equals(made.to_frame())


def test_what_was_foreseen_before_and_after_each_probe_is_loaded_without_loss(tmp_path: Path) -> None:
    peak = MemoryPeak(MemorySplit(1, 2, 3, 4, 5, 6), 20, "optimizer step")
    prospects = {0: OptimalityGap(math.inf, math.inf, 20), 1: OptimalityGap(0.25, 0.5, 19)}
    made = result(prospects=prospects, estimated_peaks={0: peak, 1: replace(peak, reserved_bytes=30)})
    first = made.save(tmp_path / "first")
    again = TuningResult.load(TuningResult.load(first).save(tmp_path / "second"))
    assert again.prospects == made.prospects == again.prospects
    assert again.estimated_peaks == made.estimated_peaks == again.estimated_peaks
    (first / "result.json").unlink()
    killed = TuningResult.load(first)
    assert killed.estimated_peaks == made.estimated_peaks, "a search that was killed has written no result.json"
    assert (made.complete, again.complete, killed.complete) == (True, True, False)
    (first / "probes" / "0001" / PROSPECT).write_text("{")
    with pytest.warns(UnreadableFile, match="probes/0001/prospect.json"):
        assert TuningResult.load(first).prospects == {0: prospects[0]}, "one that is not whole is none"


def test_a_report_written_from_a_loaded_result_is_the_same(tmp_path: Path) -> None:
    first = result().save(tmp_path / "first")
    second = TuningResult.load(first).save(tmp_path / "second")
    for path in first.rglob("*"):
        if path.suffix in (".json", ".csv", ".md"):
            assert (second / path.relative_to(first)).read_bytes() == path.read_bytes(), path.name


def test_an_interrupted_search_is_loaded_with_what_it_has(tmp_path: Path) -> None:
    folder = result().save(tmp_path)
    (folder / "result.json").unlink()
    (folder / "probes" / "0002" / ANSWER).unlink()
    again = TuningResult.load(folder)
    assert len(again.trials) == 2
    assert again.stop_reason == "the search was interrupted"


def test_the_losses_of_a_search_that_was_killed_are_compared_as_the_search_would_have(tmp_path: Path) -> None:
    falling, flat = tuple(9 - 0.05 * step for step in range(12)), (9.0,) * 12
    trials = [
        replace(trial, confirmations=tuple(replace(each, losses=losses) for each in trial.confirmations))
        for trial, losses in zip(result().trials, (falling, flat, ()), strict=True)
    ]
    folder = result(trials).save(tmp_path / "study")
    assert TuningResult.load(folder).best.number == 1
    (folder / "result.json").unlink()
    for _ in range(2):
        killed = TuningResult.load(folder)
        assert killed.numerics is not None
        assert killed.numerics.flag(1)
        assert (killed.best.number, killed.changes_settings) == (0, False)
        replace(killed, numerics=None).save(folder)  # a report of what was known before these rounds


@pytest.mark.parametrize("what", ["", "study"])
def test_a_folder_without_a_study_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(InvalidRequest, match="no study") as caught:
        TuningResult.load(tmp_path / what)
    assert caught.value.advice


@pytest.mark.parametrize("name", [REQUEST, "environment.json", "result.json"])
@pytest.mark.parametrize("content", ["{", "null", "\x00\xff", '{"request": "x", "workload": 1}', None])
def test_a_damaged_folder_is_refused_in_one_line_that_names_the_file(
    tmp_path: Path, name: str, content: str | None
) -> None:
    folder = result(finished="0123456789abcdef").save(tmp_path)
    (folder / name).write_bytes(content.encode("latin-1")) if content is not None else (folder / name).unlink()
    if name == "result.json" and str(content).startswith('{"'):
        assert TuningResult.load(folder).stop_reason == "the search was interrupted"
        return
    with pytest.raises(InvalidRequest) as caught:
        TuningResult.load(folder)
    assert "\n" not in str(caught.value)
    assert (content is None and name == REQUEST) or str(folder / name) in str(caught.value)
    assert not re.search(r"Error|x[0-9a-f]{2}|missing \d|object", str(caught.value)), "nothing of Python's own"
    assert caught.value.advice
    assert "fresh" not in str(caught.value), "what was measured is whole"


TAMPERED = [b'{"outcome": "comp', b'{"a": 1}', b"null", bytes(range(200, 256)), None]
"""What a measurement may be after an accident; None: gone."""


@pytest.mark.parametrize("content", TAMPERED, ids=repr)
def test_whatever_cannot_be_read_is_named_and_without_the_baseline_there_is_no_answer(
    tmp_path: Path, content: bytes | None
) -> None:
    folder = result().save(tmp_path / "study")
    whole = TuningResult.load(folder).to_dict()
    names = sorted(str(path.relative_to(folder)) for path in (folder / "probes").rglob("*.json"))
    assert {"probes/0000/measurement.json", "probes/0000/confirmation-1/measurement.json"} <= {*names}
    for name in names:
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(content) if content is not None else (folder / name).unlink()
        got, said = None, ""
        with catch_warnings(record=True) as caught:
            simplefilter("always")
            try:
                got = TuningResult.load(folder)
            except InvalidRequest as error:
                said = str(error)
        read = not name.endswith(f"/{ORDER}") or "confirmation" not in name  # a round's order is never read
        gone = content is None and (ORDER in name or "confirmation" in name or not name.startswith("probes/0000/"))
        if name.startswith("probes/0000/") and read and not (gone and "confirmation" in name):
            assert got is None, name
            assert str(folder / name) in said
        elif read and not gone:
            assert got is not None
            assert name in " ".join(map(str, (warning.message for warning in caught)))
            assert name in " ".join(map(str, got.warnings))
            assert [*got.unreadable] == [warning for warning in got.study_warnings if name in warning.text]
        elif got is not None and not got.unreadable and len(got.trials) == whole["trials"]:
            assert {**got.to_dict(), "warnings": []} == {**whole, "warnings": []} or gone
        (folder / name).write_bytes(kept)
    assert TuningResult.load(folder).to_dict() == whole


def test_no_secret_is_written(tmp_path: Path) -> None:
    secret = {"hub_token": "hf_secret", "push_to_hub_token": "hf_secret", "learning_rate": 1e-3}
    request = tuning_request("gpt2-mini", 48, args=read_user_arguments(secret).fields)
    for path in result(request=request).save(tmp_path).rglob("*.*"):
        assert b"hf_secret" not in path.read_bytes(), path.name


def test_a_report_names_no_place_of_the_machine_and_no_token(tmp_path: Path) -> None:
    place, token = "/home/ann/models/mine", "hf_abcdefghijklmnopqrst"
    made = result(
        request=tuning_request(place, 48, device="cpu", dataset="/home/ann/rows.csv"),
        workload=workload(
            name=place, source=place, weights=place, text_source=f"tokenizer of {place}/words (3 tokens)", samples=3
        ),
        notes=(Note(NoteKind.COLUMNS, detail=f"{place}/a.py failed with {token}"),),
        ruled_out=(RuledOut("precision", "fp16", Exclusion(ExclusionKind.TRIED, detail=f"{place}/b.so is missing")),),
    )
    for path in made.save(tmp_path).rglob("*"):
        if path.suffix in (".json", ".md", ".html", ".csv", ".yaml", ".py"):
            text = path.read_text(encoding="utf-8")
            assert "/home/ann" not in text, path.name
            assert token not in text, path.name
    assert "mine (GPT2LMHeadModel" in made.model_text
    again = TuningResult.load(tmp_path)
    assert (again.workload.name, again.identity) == ("mine", made.identity)


def test_code_of_a_model_s_own_is_opened_from_where_the_search_had_it(tmp_path: Path) -> None:
    own = workload(name="mine", source="/home/ann/models/mine", trust_remote_code=True)
    folder = result(workload=own).save(tmp_path)
    assert TuningResult.load(folder).workload.source == "mine"
    order = folder / "probes" / "0000" / ORDER
    write_json(order, read_json(order) | {"workload": own.to_dict()})
    assert TuningResult.load(folder).workload == own


@pytest.mark.parametrize(
    ("facts", "loaded_by"),
    [
        ({"name": "org/model", "source": "org/model"}, "AutoModelForCausalLM"),
        ({"name": "mine", "source": "/home/ann/mine"}, "AutoModelForCausalLM"),
        ({}, ""),
        ({"name": "small.json", "source": "/home/ann/small.json"}, ""),
        ({"name": "GPT2LMHeadModel", "source": "its config", "task": "custom", "user_objects": True}, ""),
    ],
    ids=["hub", "folder", "built in", "config file", "the caller's own"],
)
def test_only_a_model_that_a_name_loads_has_a_class_for_it(facts: dict[str, Any], loaded_by: str) -> None:
    answer = answer_of(result(workload=workload(**facts)))
    assert answer is not None
    assert answer.auto_class == loaded_by


def test_warnings_are_of_the_study_the_best_the_baseline_and_the_losses_each_once() -> None:
    falling = {1: Curve((9.0, 8.0, 7.0, 6.0))}
    made = result(
        [
            trial(0, 10.0, observed_warnings=warned("throttled")),
            trial(1, 40.0, of=configuration(16), observed_warnings=warned("a busy machine", "others held memory")),
            trial(2, 30.0, of=configuration(4), observed_warnings=warned("of no interest")),
        ],
        request=LIMITED,
        study_warnings=warned("others held memory"),
        numerics=Numerics(falling, {1: {1: Curve((9.0,) * 4)}}),
    )
    *others, losses, of_baseline = made.warnings
    assert others == [*warned("others held memory", "a busy machine")]
    assert losses == loss_warning(made)
    assert made.numerics.flag(1) in losses.text
    assert (of_baseline.of, of_baseline.detail) == ("baseline", "throttled")
    assert made.study_warnings == warned("others held memory")
    assert made.to_dict()["warnings"] == [warning.to_dict() for warning in made.warnings]
    assert result().warnings == ()


def test_a_result_that_lies_nowhere_is_neither_verified_nor_explained() -> None:
    for what in (result().verify, result().explain):
        with pytest.raises(InvalidRequest, match="is in no folder"):
            what()
