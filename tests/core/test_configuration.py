"""A configuration's global batch size is exact, or it cannot be built."""

import json
import random

import pytest

from autotune.core.configuration import Configuration
from tests.makers import SETTINGS, configuration


def test_the_global_batch_size_is_exact_wherever_a_configuration_can_be_built() -> None:
    for target, micro in ((48, 0), (48, -4), (0, 4)):
        with pytest.raises(ValueError, match="micro-batch"):
            Configuration.exact(target, micro, {})
    draw = random.Random(0)
    built = 0
    for _ in range(3000):
        target, micro, ranks = draw.randint(1, 512), draw.randint(1, 64), draw.choice((1, 1, 2, 4, 8))
        if target % (micro * ranks):
            with pytest.raises(ValueError, match="does not divide"):
                Configuration.exact(target, micro, {}, ranks)
        else:
            result = Configuration.exact(target, micro, {}, ranks)
            assert result.global_batch_size == target
            assert (result.micro_batch_size, result.data_parallel_size) == (micro, ranks)
            built += 1
    assert built > 100


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-2, 4, 1), (2.0, 4, 1), ("2", 4, 1)])
def test_sizes_are_whole_numbers_from_one(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="whole numbers from 1"):
        Configuration(*sizes)


def test_its_values_name_every_setting_with_the_micro_batch_first() -> None:
    result = configuration(16, precision="bf16")
    assert list(result.values) == ["micro_batch_size", *SETTINGS]
    assert (result.values["micro_batch_size"], result.values["precision"]) == (16, "bf16")


def test_it_survives_json_and_can_be_a_key() -> None:
    result = configuration(16, precision="bf16", pin_memory=True)
    again = Configuration.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    assert {result: 1}[again] == 1


def test_it_reads_as_sizes_and_values() -> None:
    result = Configuration.exact(48, 4, {"precision": "bf16", "pin_memory": True}, data_parallel_size=2)
    assert str(result) == "4 x 6 x 2 ranks, precision bf16, pin_memory yes"
    assert str(Configuration.exact(48, 4, {})) == "4 x 12"


def test_its_sizes_and_settings_are_one_mapping() -> None:
    of = configuration(2, 8, precision="bf16")
    assert of.sizes_and_settings["precision"] == "bf16"
    assert of.sizes_and_settings["gradient_accumulation_steps"] == 4
