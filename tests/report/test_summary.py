"""The answer in words."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core import Outcome, Trial
from autotune.core.loss_curves import Curve, Numerics
from autotune.core.request import tuning_request
from autotune.report.summary import answer_lines, headline, summary
from autotune.report.trial_text import outcome_text, speed_text
from autotune.space.search_space import RuledOut
from tests.makers import GIB, MIB, completed, configuration, ended, out_of_memory, result, trial, workload

SLOW, FAST = configuration(8), configuration(16)


@pytest.mark.parametrize(
    ("gain", "spread", "text"),
    [
        (4.0, 1e-4, "4.0x faster"),
        (1.08, 1e-4, "1.08x faster"),
        (1.01, 0.1, "Cannot tell whether this is faster than your settings (1.01x"),
        (0.5, 1e-4, "Your own settings are the best"),
    ],
)
def test_the_headline_has_the_gain_with_the_digits_that_show_it(gain: float, spread: float, text: str) -> None:
    trials = [
        trial(0, 10.0, 900 * MIB, of=SLOW, confirmed=10.0, spread=spread),
        trial(1, 10.0 * gain, of=FAST, confirmed=10.0 * gain, spread=spread),
    ]
    assert headline(result(trials)).startswith(text)


def test_the_headline_of_a_baseline_that_does_not_run_has_its_reason() -> None:
    trials = [Trial(0, SLOW, ended(Outcome.OUT_OF_MEMORY, reason="2 GiB refused")), trial(1, 10.0, of=FAST)]
    assert "2 GiB refused" in headline(result(trials))


def test_for_memory_both_peaks_are_in_the_headline() -> None:
    trials = [trial(0, 10.0, 800 * MIB, of=SLOW, confirmed=10.0), trial(1, 12.0, 300 * MIB, of=FAST, confirmed=12.0)]
    text = headline(result(trials, request=tuning_request("m", 48, objective="memory")))
    assert text.startswith("300 MiB instead of 800 MiB, 1.20x the speed of your settings (95 % interval 1.15 to 1.25)")


def test_a_single_timed_step_has_no_upper_bound() -> None:
    once = completed(SLOW, steps=completed(SLOW).steps[:1])
    study = result([Trial(0, SLOW, once), Trial(1, FAST, replace(once, probe_seconds=1.0))])
    assert "± inf" in speed_text(study.trials[0])
    assert "only 1 timed step(s)" in summary(study)
    assert any("not confirmed" in line for line in answer_lines(study))


def test_the_page_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("words")
    request = tuning_request(str(tmp_path), 48, dataset=str(tmp_path / "texts.txt"), output_dir=str(tmp_path))
    about = workload(source=str(tmp_path), data=str(tmp_path / "tokens"), data_identity=str(tmp_path / "texts.txt"))
    page = summary(result(request=request, workload=about, folder=tmp_path))
    assert str(tmp_path) not in page
    assert "texts.txt" in page


def test_names_notes_and_reasons_are_text_outside_of_code() -> None:
    odd = "a *b* <img> [x](y) `c` | d\n# e\n```"
    crashed = Trial(2, SLOW, ended(Outcome.CRASHED, reason=odd))
    study = result(
        [trial(0, 10.0, of=SLOW, confirmed=10.0), trial(1, 40.0, of=FAST), crashed],
        request=replace(tuning_request("m", 48), study_name=odd),
        workload=workload(name=odd),
        stop_reason=odd,
        notes=(odd,),
        ruled_out=(RuledOut("precision", "fp16", odd),),
    )
    outside = "".join(re.split("^```.*$", summary(study), flags=re.MULTILINE)[::2])
    assert outside.count(r"a \*b\* &lt;img&gt; \[x\](y) \`c\` \| d # e \`\`\`") == 6
    assert "<img" not in outside


def test_the_picture_of_losses_is_named_only_where_it_is_written(tmp_path: Path) -> None:
    for number, losses in enumerate(((), (9.0, 8.5, 8.0, 7.9))):
        numerics = Numerics({1: Curve(losses)}, {1: {1: Curve(losses)}})
        folder = result(numerics=numerics).save(tmp_path / str(number))
        assert ("loss_curves.svg" in (folder / "summary.md").read_text()) is bool(losses)
        assert (folder / "loss_curves.svg").exists() is bool(losses)


def test_outcomes_have_stage_and_reason() -> None:
    assert outcome_text(trial(0)) == "completed"
    assert "cannot win" in outcome_text(trial(0, ended_early=True))
    assert "in backward" in outcome_text(Trial(0, SLOW, ended(Outcome.OUT_OF_MEMORY, where="backward")))
    above = completed(SLOW, peak_bytes=990 * MIB, accumulation_steps_run=1, micro_batch_bytes=42 * MIB)
    assert outcome_text(Trial(0, SLOW, above)) == "completed, but 20% above what is allowed"
    assert "1.00 GiB" in outcome_text(Trial(0, SLOW, out_of_memory(SLOW, refused_bytes=GIB)))
