"""The traces that configurations need."""

from autotune.memory.keys import wanted_traces
from tests.makers import configuration, cpu, gpu


def test_configurations_share_traces_and_those_of_a_gpu_are_taken_as_on_one() -> None:
    alike = [configuration(4), configuration(8), configuration(8, workers=2)]
    for environment, on_cuda in ((cpu(), False), (gpu(), True)):
        request = wanted_traces(alike, environment, {}).request()
        assert (len(request["steps"]), len(request["updates"]), request["on_cuda"]) == (1, 1, on_cuda)
