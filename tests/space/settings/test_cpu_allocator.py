"""The CPU's allocator: as a setting, and in real probes whose processes were started with it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.core import Environment, Outcome, Workload
from autotune.probe.process.launcher import HostSet
from autotune.space.settings import Context
from autotune.space.settings.cpu_allocator import SETTING
from autotune.space.setup import training_setup
from tests.makers import cpu, gpu, workload
from tests.probe.probes import configuration, make_order, measured
from tests.space.settings.fakes import observed

INSTALLED = cpu(libraries={"glibc": "libc.so.6", "jemalloc": "libjemalloc.so.2"})


def test_the_user_s_own_is_what_their_variables_start() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) == "none"
    preloaded = cpu(variables={"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"})
    assert SETTING.from_user(Context(preloaded, workload())) == "jemalloc"
    mapped = cpu(variables={"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "1"})
    assert SETTING.from_user(Context(mapped, workload())) == "glibc_mmap"


def test_it_is_what_a_process_is_started_with() -> None:
    assert SETTING.apply("jemalloc", INSTALLED).host == {"LD_PRELOAD": "libjemalloc.so.2"}
    assert SETTING.apply("none", INSTALLED).host == {}
    settings = SETTING.apply("glibc_mmap", INSTALLED)
    assert settings.host["MALLOC_MMAP_THRESHOLD_"] == "262144"
    assert settings.environment == {}


def test_what_the_user_preloads_and_tunes_is_kept() -> None:
    own = replace(INSTALLED, variables={"LD_PRELOAD": "libfoo.so", "GLIBC_TUNABLES": "glibc.pthread.rseq=0"})
    asked = configuration(cpu_allocator="jemalloc")
    assert training_setup(asked, own, {}).host_environment == {"LD_PRELOAD": "libfoo.so:libjemalloc.so.2"}
    made = training_setup(configuration(cpu_allocator="glibc_mmap"), own, {}).host_environment
    assert made["GLIBC_TUNABLES"] == "glibc.pthread.rseq=0:glibc.malloc.hugetlb=1"
    assert training_setup(asked, own, {}).process_environment == {}


def test_it_is_read_back_from_the_process() -> None:
    assert SETTING.read_back(observed(libraries=frozenset({"libc.so.6", "libjemalloc.so.2"}))) == "jemalloc"
    assert SETTING.read_back(observed(libraries=frozenset({"libtcmalloc_minimal.so.4"}))) == "tcmalloc"
    assert SETTING.read_back(observed(started_with=SETTING.apply("glibc_mmap", cpu()).host)) == "glibc_mmap"
    assert SETTING.read_back(observed()) == "none"


def test_what_is_not_installed_or_not_the_device_s_is_unavailable() -> None:
    assert SETTING.unavailable("jemalloc", Context(INSTALLED, workload())) is None
    assert "libtcmalloc-minimal4" in str(SETTING.unavailable("tcmalloc", Context(INSTALLED, workload())))
    assert SETTING.unavailable("glibc_mmap", Context(INSTALLED, workload())) is None
    assert "not glibc" in str(SETTING.unavailable("glibc_mmap", Context(cpu(), workload())))
    assert "GPU" in str(SETTING.unavailable("glibc_mmap", Context(gpu(libraries=INSTALLED.libraries), workload())))
    preloaded = replace(INSTALLED, variables={"LD_PRELOAD": "libjemalloc.so.2"})
    assert "your own variables" in str(SETTING.unavailable("none", Context(preloaded, workload())))
    assert SETTING.unavailable("jemalloc", Context(preloaded, workload())) is None


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostSet]:
    """Hosts of this module's own, so that they end with it."""
    with HostSet() as hosts:
        yield hosts


@pytest.mark.parametrize("value", ["glibc_mmap", "jemalloc", "tcmalloc"])
@pytest.mark.nightly
def test_a_probe_runs_in_a_process_that_was_started_with_it(
    value: str,
    hosts: HostSet,
    environment: Environment,
    workload_of: Callable[..., Workload],
    tmp_path: Path,
) -> None:
    if reason := SETTING.unavailable(value, Context(environment, workload())):
        pytest.skip(f"{value}: {reason}")
    model = workload_of("bert-mini", sequence_length=16)
    for name in (value, "none"):
        order = make_order(tmp_path, environment, asked=configuration(2, cpu_allocator=name), workload=model)
        measurement = measured(hosts, order)
        assert measurement.outcome is Outcome.COMPLETED, measurement.reason
        assert measurement.settings["cpu_allocator"] == name


@pytest.mark.nightly
def test_what_no_process_can_be_started_with_is_unsupported_and_ends_no_search(
    hosts: HostSet, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    model = workload_of("bert-mini", sequence_length=16)
    broken = {"LD_PRELOAD": "", "PYTHONHOME": str(tmp_path)}
    order = make_order(tmp_path, environment, asked=configuration(2), workload=model, host_environment=broken)
    measurement = measured(hosts, order)
    assert measurement.outcome is Outcome.UNSUPPORTED
    assert "PYTHONHOME" in measurement.reason
    assert measured(hosts, replace(order, host_environment={})).outcome is Outcome.COMPLETED


@pytest.mark.nightly
def test_hosts_started_beside_another_end_with_it(
    environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    model = workload_of("bert-mini", sequence_length=16)
    before = set(psutil.Process().children())
    with HostSet() as host:
        order = make_order(tmp_path, environment, asked=configuration(2), workload=model)
        other = replace(order, host_environment={"MALLOC_ARENA_MAX": "1"})
        measured(host, other)
        measured(host, order)
        measured(host, other)
        assert len(set(psutil.Process().children()) - before) == 2
    assert not set(psutil.Process().children()) - before
