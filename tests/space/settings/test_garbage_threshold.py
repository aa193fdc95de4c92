"""Garbage threshold."""

import pytest

from autotune.space.settings import Context
from autotune.space.settings.garbage_threshold import SETTING
from tests.makers import cpu, gpu, workload
from tests.space.settings.fakes import observed

LIMITED = gpu(variables={"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.9"})
SAID = gpu(variables={"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.7"})


def test_the_user_s_own_is_what_their_variable_says_and_cannot_be_taken_back() -> None:
    assert SETTING.from_user(Context(gpu(), workload())) == "none"
    assert SETTING.from_user(Context(SAID, workload())) == 0.7
    assert "no value undoes that" in (SETTING.unavailable("none", Context(SAID, workload())) or "")
    assert SETTING.unavailable("none", Context(gpu(), workload())) is None


def test_it_is_one_of_the_allocator_s_settings() -> None:
    assert SETTING.apply(0.6, gpu()).environment == {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.6"}
    assert SETTING.apply("none", gpu()).environment == {}


@pytest.mark.parametrize(("told", "value"), [(0.0, "none"), (0.6, 0.6), (0.800000011920929, 0.8), (0.5, 0.5)])
def test_it_is_read_back_from_the_allocator(told: float, value: object) -> None:
    assert SETTING.read_back(observed(allocator={"garbage_collection_threshold": told})) == value


def test_it_is_a_gpu_s() -> None:
    assert "GPU" in (SETTING.unavailable(0.8, Context(cpu(), workload())) or "")
    assert SETTING.unavailable(0.8, Context(LIMITED, workload())) is None


@pytest.mark.parametrize("said", ["", "per_process_memory_fraction:1.0", "expandable_segments:True"])
def test_it_is_left_out_where_the_training_itself_would_not_heed_it(said: str) -> None:
    """Probes are held to a fraction of the card, so in them it would work."""
    reason = SETTING.unavailable(0.8, Context(gpu(variables={"PYTORCH_CUDA_ALLOC_CONF": said}), workload()))
    assert "per_process_memory_fraction below 1" in (reason or "")
    assert SETTING.unavailable("none", Context(gpu(variables={"PYTORCH_CUDA_ALLOC_CONF": said}), workload())) is None


def test_what_the_user_s_own_variable_sets_stays_as_it_is() -> None:
    assert SETTING.unavailable(0.7, Context(SAID, workload())) is None
    assert SETTING.unavailable(0.8, Context(SAID, workload())) is not None


@pytest.mark.parametrize("text", ["0", "1", "1.2", "-0.5"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        SETTING.read(text)
