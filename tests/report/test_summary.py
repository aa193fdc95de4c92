"""The answer in words."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from autotune.report.snippets import script_lines

from autotune.core.loss_curves import Curve, Numerics
from autotune.core.measurement import Outcome
from autotune.core.request import tuning_request
from autotune.core.trial import Trial
from autotune.report.summary import (
    answer_lines,
    headline,
    outcome_text,
    speed_text,
    summary,
)
from autotune.space.search_space import RuledOut
from tests.makers import GIB, MIB, completed, configuration, ended, gpu, out_of_memory, result, trial, workload

SLOW, FAST = configuration(8), configuration(16)


def test_the_headline_says_how_much_faster() -> None:
    assert headline(result()).startswith("4.0x faster than your settings (95 % interval 3.")


@pytest.mark.parametrize("gain", [1.02, 1.04, 1.08])
def test_a_small_gain_is_told_with_the_digits_that_show_it(gain: float) -> None:
    trials = [
        trial(0, 10.0, of=SLOW, confirmed=10.0, spread=1e-4),
        trial(1, 10.0 * gain, of=FAST, confirmed=10.0 * gain, spread=1e-4),
    ]
    assert headline(result(trials)).startswith(f"{gain:.2f}x faster than your settings")


def test_a_gain_within_noise_is_called_none() -> None:
    trials = [
        trial(0, 10.0, 900 * MIB, of=SLOW, confirmed=10.0, spread=0.1),
        trial(1, 10.1, of=FAST, confirmed=10.1, spread=0.1),
    ]
    assert headline(result(trials)).startswith("Cannot tell whether this is faster than your settings (1.01x")


def test_the_baseline_may_be_best() -> None:
    trials = [trial(0, 10.0, of=SLOW, confirmed=10.0), trial(1, 5.0, of=FAST)]
    assert headline(result(trials)) == "Your own settings are the best that was found."


def test_a_baseline_that_does_not_run_is_named_with_its_reason() -> None:
    trials = [Trial(0, SLOW, ended(Outcome.OUT_OF_MEMORY, reason="2 GiB refused")), trial(1, 10.0, of=FAST)]
    assert "2 GiB refused" in headline(result(trials))
    assert "does not run" in headline(result(trials))


def test_nothing_that_fits_is_said_so() -> None:
    facts = result([Trial(0, SLOW, out_of_memory(SLOW))])
    assert headline(facts) == "Nothing fits: none of 1 trial(s) stayed within 1000 MiB."
    assert "Why it ended" in answer_lines(facts)[-1]
    assert "What to paste" not in summary(facts)
    assert "For other tools" not in summary(facts)


def test_for_memory_both_peaks_are_told() -> None:
    trials = [trial(0, 10.0, 800 * MIB, of=SLOW, confirmed=10.0), trial(1, 12.0, 300 * MIB, of=FAST, confirmed=12.0)]
    told = headline(result(trials, request=tuning_request("m", 48, objective="memory")))
    assert told == "300 MiB instead of 800 MiB, 1.20x the speed of your settings."


def test_a_single_timed_step_can_be_told() -> None:
    of = configuration()
    once = completed(of, steps=completed(of).steps[:1])
    facts = result([Trial(0, of, once), Trial(1, FAST, replace(once, probe_seconds=1.0))])
    assert "± inf" in speed_text(facts.trials[0])
    assert "only 1 timed step(s)" in summary(facts)
    assert answer_lines(facts)


def test_the_end_of_a_search_names_both_configurations_and_what_learns_differently() -> None:
    told = "\n".join(answer_lines(result()))
    assert "16 x 3, precision bf16; else as the baseline" in told
    assert "8 x 6, checkpointing none, precision fp32" in told
    assert "learns differently from your settings: precision bf16 instead of fp32" in told
    assert "not confirmed" not in told
    assert told.endswith("Why it ended: the budget of 3 trials is used.")


def test_an_answer_that_was_not_confirmed_says_so_and_warnings_are_told() -> None:
    facts = result([trial(0, 10.0, of=SLOW), trial(1, 20.0, of=FAST, observed_warnings=("throttled",))])
    told = "\n".join(answer_lines(facts))
    assert "not confirmed" in told
    assert "warning   throttled" in told


def test_one_card_of_several_is_named_with_how_to_start_on_it() -> None:
    facts = result(environment=gpu(device_count=4))
    assert "CUDA_VISIBLE_DEVICES=GPU-0123" in "\n".join(answer_lines(facts))
    assert facts.device_note in summary(facts)
    assert result(environment=gpu()).device_note == ""


def test_the_page_holds_answer_paste_lines_trials_and_what_was_ruled_out() -> None:
    facts = result()
    page = summary(facts)
    assert page.startswith("# gpt2-mini-causal-lm-gb48-cpu\n")
    for line in (*answer_lines(facts), *script_lines(".", facts)):
        assert line in page
    assert '"per_device_train_batch_size": 16' in page
    assert '"dtype": "float32"' in page
    assert "- precision fp16: trains in fp32 on a CPU" in page
    assert "- random weights" in page
    assert page.count("\n| ") == 1 + len(facts.trials)
    assert "(best)" in page
    assert "For other tools: [accelerate_config.yaml](accelerate_config.yaml), " in page
    assert "ds_config.json" not in page
    assert page.endswith("\n")


def test_the_page_names_no_place_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("words")
    request = tuning_request(str(tmp_path), 48, dataset=str(tmp_path / "texts.txt"), output_dir=str(tmp_path))
    about = workload(source=str(tmp_path), data=str(tmp_path / "tokens"), data_identity=str(tmp_path / "texts.txt"))
    page = summary(result(request=request, workload=about, folder=tmp_path))
    assert str(tmp_path) not in page
    assert "texts.txt" in page


def test_the_page_says_where_it_was_measured() -> None:
    own = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    page = summary(result(environment=gpu(variables=own, others=("python (7)",)))).partition("## Where")[2]
    for line in (
        "- limit: 1.07 GiB of memory, 1000 MiB allowed",
        "- memory: 79.00 GiB free of 80.00 GiB",
        "- cores: 16, 2 compute threads",
        "- driver: 580.1; compute capability 9.0",
        "- others: python (7)",
        "- variables: PYTORCH_ALLOC_CONF=expandable_segments:True",
    ):
        assert line in page.splitlines()


def test_a_table_s_cell_stays_one_cell() -> None:
    of = configuration()
    odd = Trial(0, of, ended(Outcome.CRASHED, reason="a | b\nc\r\nd"))
    rows = [line for line in summary(result([odd])).splitlines() if line.startswith("| 0")]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 9


def test_names_notes_and_reasons_are_text_outside_of_code() -> None:
    odd = "a *b* <img> [x](y) `c` | d\n# e\n```"
    crashed = Trial(2, SLOW, ended(Outcome.CRASHED, reason=odd))
    facts = result(
        [trial(0, 10.0, of=SLOW, confirmed=10.0), trial(1, 40.0, of=FAST), crashed],
        request=replace(tuning_request("m", 48), study_name=odd),
        workload=workload(name=odd),
        stop_reason=odd,
        notes=(odd,),
        ruled_out=(RuledOut("precision", "fp16", odd),),
    )
    page = summary(facts)
    outside = "".join(re.split("^```.*$", page, flags=re.MULTILINE)[::2])
    assert outside.count(r"a \*b\* &lt;img&gt; \[x\](y) \`c\` \| d # e \`\`\`") == 6
    assert "<img" not in outside


def test_the_table_s_seconds_are_those_of_the_probe_and_its_rounds() -> None:
    page = summary(result([trial(0, confirmed=10.0, probe_seconds=61.0)]))
    assert "| 3 min 3 s |" in page


def test_the_picture_of_losses_is_named_only_where_it_is_written(tmp_path: Path) -> None:
    for number, losses in enumerate(((), (9.0, 8.5, 8.0))):
        numerics = Numerics((Curve(losses, problem="" if losses else "out of memory"),), problem="only one, or none")
        folder = result(numerics=numerics).save(tmp_path / str(number))
        assert ("loss_curves.svg" in (folder / "summary.md").read_text()) is bool(losses)
        assert (folder / "loss_curves.svg").exists() is bool(losses)


def test_a_study_is_called_as_it_was_asked_for() -> None:
    request = tuning_request("gpt2-mini", 48, device="cpu", study_name="mine")
    assert summary(result(request=request)).startswith("# mine\n")


def test_outcomes_are_told_with_place_and_reason() -> None:
    assert outcome_text(trial(0)) == "completed"
    assert outcome_text(trial(0, confirmed=10.0)) == "completed (confirmed)"
    assert "cannot win" in outcome_text(trial(0, ended_early=True))
    assert "in backward" in outcome_text(Trial(0, SLOW, ended(Outcome.OUT_OF_MEMORY, where="backward")))
    above = completed(SLOW, peak_bytes=990 * MIB, accumulation_steps_run=1, micro_batch_bytes=42 * MIB)
    assert outcome_text(Trial(0, SLOW, above)) == "completed, but 20% above what is allowed"
    assert "out of memory" in outcome_text(Trial(0, SLOW, out_of_memory(SLOW, refused_bytes=GIB)))


def test_an_adapter_and_a_collator_of_their_own_are_told_and_can_be_pasted() -> None:
    slow = configuration(8, lora="none", packing="none", padding="none")
    fast = configuration(16, lora="8", packing="none", padding="64")
    trials = [trial(0, 10.0, of=slow, confirmed=10.0), trial(1, 20.0, of=fast, confirmed=20.0)]
    made = result(trials)
    facts = made
    told = "\n".join(answer_lines(facts))
    assert "data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of=64)" in told
    assert "LoraConfig(r=8, lora_alpha=16" in told or "LoraConfig(target_modules='all-linear', r=8" in told
    page = summary(facts)
    assert "get_peft_model(model, LoraConfig(**json.load(open(" in page
    assert "from transformers import DataCollatorForLanguageModeling" in page
    assert made.to_dict()["adapter"]["r"] == 8
    assert made.to_dict()["data_arguments"] == {"packing": False, "pad_to_multiple_of": 64}
