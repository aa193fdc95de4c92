"""The answer in words."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core import Outcome, Trial
from autotune.core.note import Note, NoteKind
from autotune.core.prospect import OptimalityGap
from autotune.core.request import tuning_request
from autotune.core.stop_reason import StopKind, StopReason
from autotune.report.summary import answer_lines, share_lines, summary, use_lines
from autotune.report.trial_text import outcome_text, speed_text
from autotune.space.search_space import RuledOut
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from tests.makers import (
    GIB,
    MIB,
    completed,
    configuration,
    ended,
    out_of_memory,
    result,
    trial,
    warned,
    with_setup,
    workload,
)

SLOW, FAST = configuration(8), configuration(16)


REPORTS = {
    "improved": result(),
    "nothing else measured": result([trial(0)]),
    "nothing fits": result([Trial(0, SLOW, out_of_memory(SLOW))]),
    "long names": result(
        [
            trial(0, 10.0, of=SLOW, confirmed=10.0),
            trial(1, 20.0, of=configuration(16, optimizer="o" * 90), confirmed=20.0),
        ],
        study_warnings=warned("w" * 60 + " other processes used 1.6 cores meanwhile " * 3),
    ),
}


@pytest.mark.parametrize("state", REPORTS)
def test_the_end_of_a_search_fits_80_columns_but_for_commands(state: str) -> None:
    lines = answer_lines(REPORTS[state])
    wide = [line for line in lines if len(line) > 80 and not line.startswith("    autotune ")]
    assert all(max(map(len, line.split())) > 60 for line in wide), "but for a name that no line holds"
    text = " ".join(" ".join(lines).split())
    assert "(s)" not in text
    assert text.endswith("Why it ended: the budget of 3 trials is used.")


def test_yours_and_tuned_are_next_to_each_other_with_what_changes() -> None:
    lines = answer_lines(result())
    assert re.fullmatch(r"4\.00x as fast as the Trainer's defaults \(8x6, fp32\) +\(95% 3\.86x to 4\.15x\)", lines[0])
    rows = {line[2:34].strip(): line[34:].split("  ") for line in lines if len(line) > 50}
    cells = {name: [cell.strip() for cell in cells if cell.strip()] for name, cells in rows.items()}
    assert cells["samples/s"] == ["10.00 ± 0.31", "40.0 ± 1.3"]
    assert cells["per_device_train_batch_size"] == ["8", "16"]
    assert cells["bf16"] == ["False", "True"]


def test_a_literal_is_not_broken_between_lines() -> None:
    lines = answer_lines(replace(result(), prospects={2: OptimalityGap(0.23, 0.3, 268)}))
    assert any("--keep-numerics" in line for line in lines)
    assert any("--n-trials 40" in line for line in lines)
    assert not any("`" in line for line in lines)


def test_a_baseline_that_does_not_run_has_its_reason() -> None:
    trials = [Trial(0, SLOW, ended(Outcome.OUT_OF_MEMORY, reason="2 GiB refused")), trial(1, 10.0, of=FAST)]
    assert "2 GiB refused" in " ".join(answer_lines(result(trials)))


def test_no_interval_is_wider_than_its_number() -> None:
    once = completed(SLOW, steps=completed(SLOW).steps[:1])
    study = result([Trial(0, SLOW, once), Trial(1, FAST, replace(once, probe_seconds=1.0))])
    assert speed_text(study.trials[0]) == "about 9.9"
    assert "±" not in summary(study) + "\n".join(answer_lines(study))
    assert "only 1 timed step" in summary(study)


def test_the_end_of_a_search_names_verify_only_where_that_can_train_the_answer() -> None:
    found = result(folder=Path("reports", "first"))
    assert "Check it  autotune verify first" in use_lines(found, 1.0)
    assert not any("verify" in line for line in use_lines(with_setup(found, processes=2), 1.0))


def test_three_lines_of_markdown_are_there_to_share() -> None:
    claimed, changed, command = share_lines(result())
    claim = "4.00x as fast as the Trainer's defaults (8x6, fp32)"
    assert claimed == f"**gpt2-mini: {claim}** (95% interval 3.86x to 4.15x), on a plain processor."
    assert changed == (
        "Change: `per_device_train_batch_size` 8 → 16, `gradient_accumulation_steps` 6 → 3, `bf16` False → True."
    )
    assert command == (
        "`autotune search gpt2-mini --global-batch-size 48 --device cpu` · autotune 1.2.3, torch 2.13.0, transformers 5.23.0"
    )


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
        [trial(0, 10.0, of=SLOW, confirmed=10.0), trial(1, 40.0, of=FAST, confirmed=40.0), crashed],
        request=replace(tuning_request("m", 48), study_name=odd),
        workload=workload(name=odd),
        stop=StopReason(StopKind.FAILED, detail=odd),
        notes=(Note(NoteKind.COLUMNS, detail=odd),),
        ruled_out=(RuledOut("precision", "fp16", Exclusion(ExclusionKind.TRIED, detail=odd)),),
    )
    outside = "".join(re.split("^```.*$", summary(study), flags=re.MULTILINE)[::2])
    assert outside.count(r"a \*b\* &lt;img&gt; \[x\](y) \`c\` \| d # e \`\`\`") == 6
    assert "<img" not in outside


def test_outcomes_have_stage_and_reason() -> None:
    assert outcome_text(trial(0)) == "completed"
    assert "cannot win" in outcome_text(trial(0, ended_early=True))
    assert "in backward" in outcome_text(Trial(0, SLOW, ended(Outcome.OUT_OF_MEMORY, where="backward")))
    above = completed(SLOW, peak_bytes=990 * MIB, accumulation_steps_run=1, micro_batch_bytes=42 * MIB)
    assert outcome_text(Trial(0, SLOW, above)) == "completed, but 20% above what is allowed"
    assert "1.00 GiB" in outcome_text(Trial(0, SLOW, out_of_memory(SLOW, refused_bytes=GIB)))
