"""What one trial settles about configurations that were never probed."""

from dataclasses import replace

import pytest

from autotune.core.configuration import Configuration, Value
from autotune.core.measurement import Measurement, Outcome
from autotune.core.trial import Trial
from autotune.space.dominance import NEVER_PROBED, crashing_values, implied_by
from tests.makers import completed, configuration, ended, out_of_memory, trial


def settles(measured: Configuration, measurement: Measurement, other: Configuration) -> bool:
    return implied_by(other, [Trial(3, measured, measurement)]) is not None


def refused(measured: Configuration, other: Configuration, **facts: object) -> bool:
    return settles(measured, out_of_memory(measured, **facts), other)


def test_a_trial_answers_for_itself_however_it_ended() -> None:
    one = configuration()
    for measurement in (completed(one), *(ended(outcome) for outcome in Outcome if outcome is not Outcome.COMPLETED)):
        assert settles(one, measurement, configuration())


def test_the_first_trial_that_answers_is_named() -> None:
    trials = [trial(0), Trial(1, configuration(16), out_of_memory(configuration(16))), trial(2, of=configuration(24))]
    assert implied_by(configuration(24), trials) is trials[1]
    assert implied_by(configuration(4), trials) is None
    assert implied_by(configuration(4), []) is None


# Out of memory on the device ------------------------------------------------------------------------------------


def test_the_same_or_a_larger_micro_batch_does_not_fit_either() -> None:
    assert refused(configuration(12), configuration(16))
    assert refused(configuration(12), configuration(24))
    assert not refused(configuration(12), configuration(8))


@pytest.mark.parametrize(
    ("setting", "lean", "hungry"),
    [
        ("checkpointing", "full", "none"),
        ("optimizer", "sgd", "adamw_torch"),
        ("optimizer", "adamw_torch_fused", "adamw_torch"),
    ],
)
def test_hungrier_values_do_not_fit_either_and_leaner_ones_stay_open(setting: str, lean: Value, hungry: Value) -> None:
    assert refused(configuration(12, **{setting: lean}), configuration(12, **{setting: hungry}))
    assert refused(configuration(12, **{setting: lean}), configuration(16, **{setting: hungry}))
    assert not refused(configuration(12, **{setting: hungry}), configuration(12, **{setting: lean}))
    assert not refused(configuration(12, **{setting: hungry}), configuration(24, **{setting: lean}))


def test_values_without_an_order_settle_only_themselves() -> None:
    assert not refused(configuration(12, optimizer="adafactor"), configuration(12, optimizer="adamw_bnb_8bit"))
    assert not refused(configuration(12, optimizer="adamw_bnb_8bit"), configuration(12, optimizer="adafactor"))


@pytest.mark.parametrize(("one", "other"), [("fp32", "bf16"), ("bf16", "fp32"), ("fp16", "bf16"), ("tf32", "fp32")])
def test_precision_has_no_order(one: str, other: str) -> None:
    assert not refused(configuration(12, precision=one), configuration(24, precision=other))


def test_larger_but_leaner_stays_open() -> None:
    assert not refused(configuration(12), configuration(24, checkpointing="full"))


@pytest.mark.parametrize("settings", [{"workers": 0}, {"workers": 4}, {"pin_memory": True}])
def test_how_data_is_loaded_does_not_matter_to_the_device(settings: dict[str, Value]) -> None:
    assert refused(configuration(12, workers=2), configuration(12, **settings))


def test_one_met_while_accumulating_settles_only_what_accumulates_too() -> None:
    assert refused(configuration(12), configuration(24))
    assert not refused(configuration(12), configuration(48))
    assert not refused(configuration(24), configuration(48))


def test_one_met_without_accumulation_settles_all_that_is_at_least_as_hungry() -> None:
    assert refused(configuration(48, checkpointing="full"), configuration(48))


def test_a_warning_settles_nothing_but_itself() -> None:
    warnings = {"observed_warnings": ("another process on the device: python (7)",)}
    assert not refused(configuration(12), configuration(16), **warnings)
    assert refused(configuration(12), configuration(12), **warnings)


def test_another_number_of_ranks_is_another_question() -> None:
    one = configuration(12)
    two = Configuration(12, 2, 2, one.settings)
    assert not refused(one, two)
    assert not refused(two, one)


def test_another_space_is_another_question() -> None:
    measured = Configuration.exact(48, 12, {"precision": "fp32"})
    assert not refused(measured, configuration(24))
    assert not refused(configuration(12), Configuration.exact(48, 24, {"precision": "fp32"}))


# Out of memory in data loading or on the host -------------------------------------------------------------------


@pytest.mark.parametrize("where", ["data", "host"])
def test_workers_count_where_the_host_s_memory_ran_out(where: str) -> None:
    assert refused(configuration(12, workers=2), configuration(12, workers=2, pin_memory=True), where=where)
    assert refused(configuration(12, workers=2), configuration(16, workers=4), where=where)
    assert not refused(configuration(12, workers=2), configuration(12, workers=0), where=where)
    assert not refused(configuration(12, workers=2), configuration(24, workers=1), where=where)


def test_pinned_memory_is_the_host_s() -> None:
    assert not refused(configuration(12, pin_memory=True), configuration(12, pin_memory=False), where="host")
    assert refused(configuration(12, pin_memory=False), configuration(12, pin_memory=True), where="host")


# Other ends -----------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_settles_its_own_precision() -> None:
    nan = ended(Outcome.NON_FINITE_LOSS)
    assert settles(configuration(8, precision="fp16"), nan, configuration(1, precision="fp16", checkpointing="full"))
    assert not settles(configuration(8, precision="fp16"), nan, configuration(8, precision="bf16"))
    assert not settles(configuration(8, precision="fp16"), nan, configuration(8, precision="fp32"))


def test_what_is_unsupported_is_so_whoever_hands_out_memory() -> None:
    made = ended(Outcome.UNSUPPORTED, where="forward")
    tried = configuration(8, sdpa_kernel="flash", cpu_allocator="jemalloc")
    assert settles(tried, made, configuration(8, sdpa_kernel="flash", cpu_allocator="none"))
    assert not settles(tried, made, configuration(8, sdpa_kernel="math", cpu_allocator="jemalloc"))


def test_a_forward_that_cannot_be_done_is_none_with_another_optimizer_either() -> None:
    tried, other = (configuration(8, sdpa_kernel="flash", optimizer=one) for one in ("sgd", "adafactor"))
    assert settles(tried, ended(Outcome.UNSUPPORTED, where="forward"), other)
    assert not settles(tried, ended(Outcome.UNSUPPORTED, where="optimizer"), other)


def test_a_loss_that_is_not_finite_settles_only_itself_where_precision_is_no_choice() -> None:
    one, other = (Configuration.exact(48, micro, {"workers": 0}) for micro in (8, 16))
    assert not settles(one, ended(Outcome.NON_FINITE_LOSS), other)


def test_what_is_unsupported_stays_so_at_other_sizes_and_loading() -> None:
    measured = configuration(8, optimizer="adafactor", precision="bf16")
    unsupported = ended(Outcome.UNSUPPORTED)
    same = {"optimizer": "adafactor", "precision": "bf16"}
    assert settles(measured, unsupported, configuration(2, workers=2, pin_memory=True, **same))
    for change in ({"optimizer": "sgd"}, {"precision": "fp32"}, {"checkpointing": "full"}):
        assert not settles(measured, unsupported, configuration(8, **same | change))


def test_what_was_misconfigured_rules_out_the_values_that_did_not_take() -> None:
    measured = configuration(8, precision="fp16")
    made = ended(
        Outcome.MISCONFIGURED,
        asked={"precision": "fp16", "workers": 0},
        settings={"precision": "fp32", "workers": 0},
    )
    assert settles(measured, made, configuration(1, precision="fp16", workers=2))
    assert not settles(measured, made, configuration(8, precision="bf16"))
    assert not settles(measured, replace(made, settings=made.asked), configuration(1, precision="fp16"))


def test_what_could_not_be_read_back_is_no_mismatch() -> None:
    made = ended(
        Outcome.MISCONFIGURED,
        asked={"precision": "fp16", "optimizer": "adamw_torch_fused"},
        settings={"precision": "fp32", "optimizer": None},
    )
    assert settles(configuration(8, precision="fp16"), made, configuration(4, precision="fp16"))


def test_a_mismatch_beside_other_kinds_of_training_settles_nothing_of_them() -> None:
    made = ended(Outcome.MISCONFIGURED, asked={"precision": "fp16"}, settings={"precision": "fp32"})
    assert not settles(configuration(8, precision="fp16"), made, configuration(8, precision="fp16", optimizer="sgd"))


def test_a_loss_that_is_not_finite_settles_only_what_learns_by_the_same_rules() -> None:
    made = ended(Outcome.NON_FINITE_LOSS)
    assert settles(configuration(8, precision="fp16"), made, configuration(4, precision="fp16", workers=2))
    assert not settles(configuration(8, optimizer="sgd"), made, configuration(8, optimizer="adamw_torch"))


def test_what_the_host_had_no_room_for_says_nothing_of_what_lies_on_the_device() -> None:
    made = ended(Outcome.OUT_OF_MEMORY, where="host", accumulation_steps=6)
    offloading = configuration(8, checkpointing="offload")
    assert settles(offloading, made, configuration(8, checkpointing="offload", workers=2))
    assert not settles(offloading, made, configuration(8, checkpointing="none"))


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.CRASHED])
def test_other_ends_settle_only_themselves(outcome: Outcome) -> None:
    measurement = completed() if outcome is Outcome.COMPLETED else ended(outcome)
    assert not settles(configuration(8), measurement, configuration(16))
    assert not settles(configuration(8), measurement, configuration(8, workers=1))


def test_a_baseline_that_was_never_probed_settles_nothing_else() -> None:
    unsupported = ended(Outcome.UNSUPPORTED, where=NEVER_PROBED)
    assert settles(configuration(8, workers=64), unsupported, configuration(8, workers=64))
    assert not settles(configuration(8, workers=64), unsupported, configuration(8))


# Crashes --------------------------------------------------------------------------------------------------------


def crashes(*configurations: Configuration) -> list[Trial]:
    return [Trial(10 + number, of, ended(Outcome.CRASHED)) for number, of in enumerate(configurations)]


def test_a_value_with_three_crashes_and_no_completed_trial_is_ruled_out() -> None:
    ran = [trial(0, of=configuration(8)), trial(1, of=configuration(16, precision="bf16"))]
    crashed = crashes(*(configuration(micro, optimizer="adafactor") for micro in (4, 8, 16)))
    other = configuration(24, optimizer="adafactor", precision="bf16")
    assert implied_by(other, [*ran, *crashed]) is crashed[0]
    assert implied_by(other, [*ran, *crashed[:2]]) is None
    assert implied_by(configuration(24), [*ran, *crashed]) is None
    completed_too = trial(2, of=configuration(12, optimizer="adafactor"))
    assert implied_by(other, [*ran, completed_too, *crashed]) is None
    assert implied_by(other, crashed) is None, "where nothing ran no value is to blame"


def test_of_values_that_crash_together_and_never_completed_both_are_needed_until_it_is_known_which() -> None:
    ran = [trial(0, of=configuration(8))]
    both = {"optimizer": "adafactor", "precision": "bf16"}
    crashed = crashes(*(configuration(micro, **both) for micro in (4, 12, 16)))
    assert implied_by(configuration(24, **both), [*ran, *crashed]) is crashed[0]
    innocent = configuration(24, precision="bf16")
    assert implied_by(innocent, [*ran, *crashed]) is None
    known = [*ran, trial(1, of=innocent), *crashed]
    assert crashing_values(known) == [({"optimizer": "adafactor"}, crashed[0])]
    assert implied_by(configuration(24, optimizer="adafactor"), known) is crashed[0]
