"""Limits of a request: what no configuration can fit into."""

import pytest

from autotune.core.errors import NothingFits
from autotune.study.limits import check_model_fits, most_shards
from tests.makers import GIB, space, workload

LARGE = workload(parameter_bytes=16 * GIB, gradient_bytes=16 * GIB)


def test_a_model_that_all_ranks_share_fits_where_it_does_not_fit_one() -> None:
    with pytest.raises(NothingFits, match=r"needs 32\.00 GiB for its weights and gradients alone \("):
        check_model_fits(LARGE, 6 * GIB, 8 * GIB)
    with pytest.raises(NothingFits, match=r"needs 8\.00 GiB for its weights and gradients alone on each of 4 ranks"):
        check_model_fits(LARGE, 6 * GIB, 8 * GIB, shards=4)
    check_model_fits(LARGE, 6 * GIB, 8 * GIB, shards=8)
    check_model_fits(LARGE, 6 * GIB, 8 * GIB, weight_bytes=2, shards=4)


def test_only_whole_shards_divide_the_weights() -> None:
    ranks = {"data_parallel_size": (1, 2, 8)}
    assert most_shards(space(**ranks, fsdp=("none", "full_shard"))) == 8
    assert most_shards(space(**ranks, zero=("none", "3"))) == 8
    assert most_shards(space(**ranks, fsdp=("none", "shard_grad_op"), zero=("none", "2"))) == 1
    assert most_shards(space()) == 1
