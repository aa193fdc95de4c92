"""YAML -> search space: what can be proposed here, what is ruled out and why, and clear words for a wrong file."""

from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Environment, InvalidRequest
from autotune.core.errors import InvalidSpace
from autotune.core.request import tuning_request
from autotune.space.build import build_space
from autotune.space.file import InvalidYaml, named_spaces, open_space, read_yaml
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS
from autotune.space.settings.micro_batch_size import divisors
from tests.makers import GIB, cpu, gpu, refusal_of, space_file, values_of, workload
from tests.makers import SETTINGS as SETTINGS_OF_A_CPU


def built(
    global_batch_size: int = 48,
    environment: Environment | None = None,
    base: dict[str, Any] | None = None,
    **options: Any,
) -> SearchSpace:
    facts = options.pop("workload", None) or workload()
    return build_space(tuning_request("m", global_batch_size, **options), environment or cpu(), facts, base or {})


def file_refusal(folder: Path, text: str) -> str:
    return refusal_of(lambda: open_space(space_file(folder, text)), InvalidSpace).replace(f"{folder}/", "")


def refusal(*args: Any, **options: Any) -> str:
    return refusal_of(lambda: built(*args, **options))


# The shipped files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", named_spaces())
def test_every_shipped_space_loads_is_described_and_commented(name: str) -> None:
    space = open_space(name)
    assert set(space.values) <= set(SETTINGS)
    assert space.description
    assert named_spaces()[name].read_text().startswith("# ")
    assert built(space=name).size > 1


# What a space holds ---------------------------------------------------------------------------------------------


def test_micro_batch_sizes_are_the_divisors_of_the_global_batch() -> None:
    assert list(values_of(built(48), "micro_batch_size")) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
    assert list(values_of(built(47), "micro_batch_size")) == [1, 47]
    assert list(values_of(built(1), "micro_batch_size")) == [1]


@pytest.mark.parametrize(("max_steps", "sizes"), [(-1, [1, 2, 4, 8, 16, 32]), (6, [1, 2, 4, 8, 16, 32, 64])])
def test_where_short_batches_are_left_out_only_sizes_with_as_many_steps_are_tried(
    max_steps: int, sizes: list[int]
) -> None:
    sizes_of_user = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 8}
    base = {**sizes_of_user, "dataloader_drop_last": True, "max_steps": max_steps}
    space = built(64, base=base, workload=workload(samples=100))
    assert list(values_of(space, "micro_batch_size")) == sizes
    reasons = {item.value: item.reason.text for item in space.ruled_out if item.setting == "micro_batch_size"}
    assert ("3 optimizer steps instead of 6" in reasons.get(64, "")) == (max_steps < 0)
    assert built(64, base=base | {"dataloader_drop_last": False}, workload=workload(samples=100)).size > space.size or (
        max_steps > 0
    )


def test_divisors_can_be_multiples_only(tmp_path: Path) -> None:
    listed = built(48, space=space_file(tmp_path, "parameters: {micro_batch_size: [5, 12, 8]}"))
    assert listed.values["micro_batch_size"] == (8, 12)
    assert [str(item) for item in listed.ruled_out] == ["micro_batch_size 5: does not divide the global batch of 48"]
    path = space_file(tmp_path, "parameters: {micro_batch_size: {multiple_of: 8}}")
    assert list(values_of(built(48, space=path), "micro_batch_size")) == [8, 16, 24, 48]
    # The baseline's own 6 stays a proposal.
    base = {"per_device_train_batch_size": 6}
    assert list(values_of(built(48, base=base, space=path), "micro_batch_size")) == [6, 8, 16, 24, 48]


def test_what_this_machine_cannot_do_is_ruled_out_with_its_reason() -> None:
    made = built(48)
    reasons = {(item.setting, item.value): item.reason.text for item in made.ruled_out}
    assert list(reasons) == [("precision", "tf32"), ("precision", "fp16"), ("pin_memory", True)]
    assert built(environment=gpu()).ruled_out == ()
    assert "trains in fp32" in reasons["precision", "fp16"]
    assert made.values["precision"] == ("fp32", "bf16")
    assert made.values["workers"] == (0, 2, 4)
    assert made.values["pin_memory"] == (False,)


def test_the_size_is_the_number_of_configurations_and_each_is_exact() -> None:
    made = built(48)
    every = list(made)
    assert len(every) == len(set(every)) == made.size
    assert all(item in made for item in every)
    assert {item.global_batch_size for item in every} == {48}


LOADING = """
parameters:
  micro_batch_size: [8]
  workers: [0, 2]
  prefetch_factor: [2, 4]
  persistent_workers: [false, true]
"""


def test_what_means_nothing_beside_the_others_is_one_configuration(tmp_path: Path) -> None:
    space = built(8, space=space_file(tmp_path, LOADING))
    every = list(space)
    assert len(every) == len(set(every)) == space.size == 1 + 2 * 2
    alone = space.configuration({"micro_batch_size": 8, "workers": 0, "prefetch_factor": 4, "persistent_workers": True})
    assert alone.values == {"micro_batch_size": 8, "workers": 0, "prefetch_factor": 2, "persistent_workers": False}
    assert all(item in space for item in every)
    assert Configuration.exact(8, 8, {"workers": 0, "prefetch_factor": 4, "persistent_workers": True}) not in space


def test_where_the_deciding_setting_is_not_in_the_space_the_user_s_own_value_decides(tmp_path: Path) -> None:
    file = space_file(tmp_path, LOADING.replace("  workers: [0, 2]\n", ""))
    with_workers, without = (built(8, base={"dataloader_num_workers": own}, space=file) for own in (2, 0))
    assert len(list(with_workers)) == with_workers.size == 4
    assert len(list(without)) == without.size == 1


# The baseline ---------------------------------------------------------------------------------------------------


def test_the_baseline_is_hugging_face_s_default_made_exact() -> None:
    made = built(48)
    assert made.baseline.values == {"micro_batch_size": 8, **SETTINGS_OF_A_CPU}
    assert made.baseline in made
    assert (made.notes, made.baseline_problem) == ((), "")
    fp16 = built(48, base={"fp16": True})
    assert "trains in fp32" in fp16.baseline_problem
    assert "fp16" not in fp16.values["precision"]


@pytest.mark.parametrize(("own", "target", "exact"), [(8, 48, 8), (10, 48, 8), (64, 48, 48), (8, 47, 1), (7, 1, 1)])
def test_the_baseline_takes_the_largest_divisor_up_to_the_user_s_micro_batch(own: int, target: int, exact: int) -> None:
    made = built(target, base={"per_device_train_batch_size": own})
    assert made.baseline.micro_batch_size == exact
    assert made.baseline.global_batch_size == target
    assert bool(made.notes) == (own != exact)


def test_the_user_s_own_values_join_those_of_the_file() -> None:
    base = {"bf16": True, "optim": "sgd", "dataloader_num_workers": 1, "gradient_checkpointing": True}
    made = built(48, base=base)
    assert "sgd" in made.values["optimizer"]
    assert made.values["workers"] == (0, 1, 2, 4)
    assert made.baseline.values["precision"] == "bf16"
    assert made.baseline.values["checkpointing"] == "full"
    assert made.baseline in made


def test_the_user_s_own_sharding_is_that_of_several_ranks() -> None:
    """The Trainer refuses FSDP in a single process."""
    two, own = gpu(device_count=2), {"fsdp": "full_shard"}
    made = built(8, two, own, space="multi-gpu")
    assert made.baseline.values["fsdp"] == "none"
    assert {each.values["fsdp"] for each in made if each.data_parallel_size == 1} == {"none"}
    assert {each.values["fsdp"] for each in made if each.data_parallel_size == 2} >= {"none", "full_shard"}
    assert built(8, two, own, space="multi-gpu", fix={"data_parallel_size": 2}).baseline.values["fsdp"] == "full_shard"


def test_only_leaves_the_baseline_as_it_is_and_outside() -> None:
    made = built(48, only=["precision=bf16"])
    assert made.values["precision"] == ("bf16",)
    assert made.baseline.values["precision"] == "fp32"
    assert made.baseline not in made


# --fix and --only -----------------------------------------------------------------------------------------------


def test_a_fixed_setting_has_one_value_for_the_baseline_too() -> None:
    made = built(48, fix=["precision=BF16", "micro_batch_size=12", "workers=2"])
    assert made.values["precision"] == ("bf16",)
    assert made.values["micro_batch_size"] == (12,)
    assert made.baseline.values["precision"] == "bf16"
    assert made.baseline.micro_batch_size == 12
    assert made.baseline in made


# Wrong files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("# a space\nparameters:\n  precision: [fp32]\n  optimiser: [sgd]\n", 4, "Did you mean 'optimizer'?"),
        ("paramters:\n  precision: [fp32]\n", 1, "Did you mean 'parameters'?"),
        ("parameters:\n  precision: [fp32\n", 3, "YAML"),
        ("parameters: {workers: !!bool 3}\n", 1, "YAML"),
        ("parameters:\n  <<: {precision: [bf61]}\n", 1, "Did you mean 'bf16'?"),
        ("", 1, "parameters"),
        ("parameters:\n  workers: [1.5]\n", 2, "workers"),
        ("parameters:\n  micro_batch_size: {multiple_of: many}\n", 2, "micro_batch_size"),
        ("parameters:\n  precision: [fp32]\n  precision: [bf16]\n", 3, "precision"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    said = file_refusal(tmp_path, text)
    assert said.startswith(f"space.yaml:{line}: "), said
    assert what in said


# YAML 1.2 -------------------------------------------------------------------------------------------------------


def test_off_and_no_are_words_and_true_is_a_boolean(tmp_path: Path) -> None:
    assert "'off' is not one of" in file_refusal(tmp_path, "parameters: {precision: [off]}")
    space = open_space(space_file(tmp_path, "parameters: {pin_memory: [true, no, False]}")).values
    assert space["pin_memory"] == (True, False, False)
    assert "'True' is not a whole number" in file_refusal(tmp_path, "parameters: {workers: [true]}")
    assert read_yaml("{a: 5e-5, b: off, c: true}") == {"a": 5e-5, "b": "off", "c": True}
    with pytest.raises(InvalidYaml):
        read_yaml("!!python/object:os.system {}")
    with pytest.raises(InvalidYaml, match="line 2: anchors"):
        read_yaml("a: 1\nb: &c [1]\n", aliases=False)


def test_a_single_value_needs_no_list(tmp_path: Path) -> None:
    path = space_file(tmp_path, "parameters: {precision: bf16, pin_memory: false, micro-batch-size: 8}")
    assert open_space(path).values == {"micro_batch_size": (8,), "precision": ("bf16",), "pin_memory": (False,)}


def test_numerics_are_kept_when_asked() -> None:
    kept = built(48, keep_numerics=True)
    assert kept.values["precision"] == ("fp32",)
    assert kept.values["optimizer"] == ("adamw_torch", "adamw_torch_fused"), "both are AdamW in 32 bits"
    assert not kept.learns_differently
    assert built(48).learns_differently == ("precision", "optimizer")
    assert "learns differently from fp32" in next(item.reason.text for item in kept.ruled_out if item.value == "bf16")


def test_a_space_names_the_settings_that_are_searched_first(tmp_path: Path) -> None:
    text = "core: [micro_batch_size, precision]\nparameters: {micro_batch_size: divisors, precision: [fp32], workers: [0, 2]}"
    assert built(6, space=space_file(tmp_path, text)).core == ("micro_batch_size", "precision")
    with pytest.raises(InvalidSpace, match="the core names 'worker', which has no values below"):
        built(6, space=space_file(tmp_path, text.replace(", precision]", ", worker]")))


# What cannot stand beside each other ----------------------------------------------------------------------------

WITHOUT_ACCUMULATION = """
parameters:
  micro_batch_size: [2, 4, 8]
  precision: [fp32, bf16]
  optimizer: [adamw_torch, lomo]
"""


def test_a_value_that_rules_out_others_is_proposed_only_where_it_can_stand(tmp_path: Path) -> None:
    works = cpu(optimizers={"adamw_torch": None, "lomo": None, "adamw_torch_fused": "not tried"})
    made = built(8, works, space=space_file(tmp_path, WITHOUT_ACCUMULATION), base={"optim": "adamw_torch"})
    every = list(made)
    assert len(every) == len(set(every)) == made.size == 3 * 2 + 2
    assert all(item in made for item in every)
    assert {item.micro_batch_size for item in every if item.values["optimizer"] == "lomo"} == {8}
    accumulating = Configuration.exact(8, 4, {"precision": "fp32", "optimizer": "lomo"})
    assert accumulating not in made
    assert "accumulate" in made.conflict(accumulating.values)
    assert any("lomo with gradient_accumulation_steps 4, 2" in note.text for note in made.notes)


def test_a_baseline_whose_values_cannot_stand_beside_each_other_says_why(tmp_path: Path) -> None:
    works = cpu(optimizers={"adamw_torch": None, "lomo": None})
    own = {"optim": "lomo", "per_device_train_batch_size": 2}
    made = built(8, works, space=space_file(tmp_path, WITHOUT_ACCUMULATION), base=own)
    assert "accumulate" in made.baseline_problem
    assert made.baseline not in made
    accumulating = space_file(tmp_path, WITHOUT_ACCUMULATION.replace("[2, 4, 8]", "[2, 4]"))
    made = built(8, works, space=accumulating, base={"optim": "adamw_torch", "per_device_train_batch_size": 4})
    assert "lomo" not in made.values["optimizer"]
    assert any(item.value == "lomo" and "accumulate" in item.reason.text for item in made.ruled_out)


def test_nothing_left_that_can_stand_beside_each_other_is_refused(tmp_path: Path) -> None:
    works = cpu(optimizers={"adamw_torch": None, "lomo": None})
    file = space_file(tmp_path, WITHOUT_ACCUMULATION)
    said = refusal(8, works, space=file, fix=["optimizer=lomo", "micro_batch_size=2"], base={"optim": "adamw_torch"})
    assert "accumulate" in said


# Ranks -----------------------------------------------------------------------------------------------------------

RANKED = "parameters:\n  micro_batch_size: divisors\n  data_parallel_size: [1, 2, 4]\n"


def test_micro_batch_times_accumulation_times_ranks_is_exact_in_every_configuration(tmp_path: Path) -> None:
    space = built(12, cpu(cpu_count=8), space=space_file(tmp_path, RANKED))
    every = list(space)
    assert len(every) == len(set(every)) == space.size
    assert {item.global_batch_size for item in every} == {12}
    pairs = {(item.micro_batch_size, item.data_parallel_size) for item in every}
    assert pairs == {(m, r) for m in (1, 2, 3, 4, 6, 12) for r in (1, 2, 4) if 12 % (m * r) == 0}
    assert all(item in space for item in every)


def test_a_micro_batch_that_is_not_exact_on_these_ranks_becomes_the_next_smaller_one(tmp_path: Path) -> None:
    space = built(12, cpu(cpu_count=8), space=space_file(tmp_path, RANKED))
    made = space.configuration({"micro_batch_size": 12, "data_parallel_size": 4})
    assert (made.micro_batch_size, made.gradient_accumulation_steps, made.data_parallel_size) == (3, 1, 4)
    only = ["micro_batch_size=3,6", "data_parallel_size=1,4"]
    fewer = built(12, cpu(cpu_count=8), space=space_file(tmp_path, RANKED), only=only)
    assert fewer.configuration({"micro_batch_size": 6, "data_parallel_size": 4}).micro_batch_size == 3


def test_ranks_that_cannot_share_the_global_batch_are_ruled_out(tmp_path: Path) -> None:
    space = built(6, cpu(cpu_count=8), space=space_file(tmp_path, RANKED))
    assert space.values["data_parallel_size"] == (1, 2)
    assert "data_parallel_size 4: does not divide the global batch of 6" in map(str, space.ruled_out)
    fixed = built(8, cpu(cpu_count=8), space=space_file(tmp_path, RANKED), fix=["micro_batch_size=8"])
    assert fixed.values["data_parallel_size"] == (1,)
    assert "with a micro-batch of 8" in " ".join(map(str, fixed.ruled_out))


def test_a_micro_batch_that_fits_none_of_the_ranks_is_ruled_out() -> None:
    space = built(8, cpu(cpu_count=8), only=["data_parallel_size=2,4"])
    assert space.values["micro_batch_size"] == (1, 2, 4)
    sizes = [str(item) for item in space.ruled_out if item.setting == "micro_batch_size"]
    assert sizes == ["micro_batch_size 8: does not divide the global batch of 8 on 2 or 4 ranks"]
    assert space.baseline.data_parallel_size == 1, "the user's own"
    assert {item.data_parallel_size for item in space} == {2, 4}


def test_fixed_ranks_make_the_baseline_exact_on_them() -> None:
    space = built(8, cpu(cpu_count=8), fix=["data_parallel_size=4"])
    assert (space.baseline.micro_batch_size, space.baseline.data_parallel_size) == (2, 4)
    assert space.baseline in space
    with pytest.raises(InvalidRequest, match="3 ranks cannot share a global batch of 8"):
        built(8, cpu(cpu_count=8), fix=["data_parallel_size=3"])
    stated = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    assert built(8, cpu(cpu_count=8), stated, fix=["data_parallel_size=2"]).baseline.gradient_accumulation_steps == 2
    with pytest.raises(InvalidRequest, match="2 x 2 x 4 ranks = 16"):
        built(8, cpu(cpu_count=8), stated, fix=["data_parallel_size=4"])


def test_tiles_are_the_multiples_that_suit_the_device_and_every_divisor_elsewhere(tmp_path: Path) -> None:
    file = space_file(tmp_path, "parameters: {micro_batch_size: tiles, precision: [fp32, bf16]}")
    own = {"per_device_train_batch_size": 64}
    assert built(256, gpu(), own, space=file).values["micro_batch_size"] == (64, 128, 256)
    assert built(256, gpu(), own, space=file, fix=["precision=fp32"]).values["micro_batch_size"][0] == 1
    assert built(6, space=file).values["micro_batch_size"] == (1, 2, 3, 6)


def test_only_takes_the_words_for_micro_batch_sizes_too() -> None:
    bf16, fp32 = ("precision=fp32,bf16",), ("precision=fp32",)
    for only, sizes in ((bf16, (64, 128, 256)), (fp32, divisors(256))):
        assert built(256, gpu(), only=[*only, "micro_batch_size=tiles"]).values["micro_batch_size"] == sizes
    made = built(256, gpu(), only={"micro_batch_size": ["tiles", 2], "precision": ["bf16"]})
    assert made.values["micro_batch_size"] == (2, 64, 128, 256)
    said = refusal(only=["micro_batch_size=tilse"])
    assert "not a whole number" in said
    assert "Did you mean 'tiles'?" in said
    assert "not a whole number" in refusal(fix=["micro_batch_size=tiles"])


def test_what_the_users_own_optimizer_cannot_stand_beside_is_left_out(tmp_path: Path) -> None:
    works = cpu(optimizers={"adamw_torch": None, "lomo": None})
    file = space_file(tmp_path, "parameters: {micro_batch_size: [2, 4, 8], precision: [fp32, bf16]}")
    made = built(8, works, space=file, base={"optim": "lomo", "per_device_train_batch_size": 8})
    assert {item.micro_batch_size for item in made} == {8}
    assert made.size == 2


def test_a_large_space_is_counted_without_a_walk_through_it() -> None:
    made = built(1024, gpu(optimizers={"adamw_torch": None, "lomo": None}), space="full", fix=["optimizer=lomo"])
    assert made.size > 10**3


HEAVY = workload(parameter_bytes=GIB, gradient_bytes=GIB)


def test_ranks_for_which_the_host_has_too_little_memory_are_left_out_or_refused() -> None:
    host = cpu(cpu_count=8, host_free_bytes=5 * GIB)
    several = built(8, host, space="multi-gpu", workload=HEAVY)
    assert several.values["data_parallel_size"] == (1, 2)
    reason = "needs 8.00 GiB of host memory (4 ranks x 2.00 GiB), and 5.00 GiB are free"
    assert f"data_parallel_size 4: {reason}" in map(str, several.ruled_out)
    refused = refusal(8, host, space="multi-gpu", workload=HEAVY, fix={"data_parallel_size": 4})
    assert refused.startswith(f"Nothing is left to try for data_parallel_size (4: {reason}).")
    lean = cpu(cpu_count=8, host_free_bytes=5 * GIB, precisions=dict.fromkeys(("fp32", "bf16_weights")))
    assert built(8, lean, space="multi-gpu", workload=HEAVY).values["data_parallel_size"] == (1, 2, 4), "in 16 bits"


def test_what_the_user_s_code_decides_is_not_searched() -> None:
    environment = gpu(precisions=dict.fromkeys(("fp32", "bf16", "bf16_weights")), versions={"peft": "1"})
    only = {"attention": ["sdpa", "eager"], "lora": ["none", "8"], "precision": ["fp32", "bf16", "bf16_weights"]}
    facts = {"attention": "sdpa", "attentions": {"sdpa": None, "eager": None}, "user_objects": True}
    space = built(8, environment, only=only, workload=workload(**facts))
    assert space.values["precision"] == ("fp32", "bf16")
    assert (space.values["attention"], space.values["lora"]) == (("sdpa",), ("none",))
    assert {item.reason.kind for item in space.ruled_out} == {"user_code"}
    space = built(8, environment, only=only, workload=workload(**facts, weights_dtype="bfloat16"))
    assert space.values["precision"] == ("bf16", "bf16_weights")
