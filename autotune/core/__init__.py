"""The nouns of autotune, of the standard library only: `from autotune.core import Configuration, Measurement, Trial`."""

from autotune.core.configuration import Configuration as Configuration
from autotune.core.configuration import Value as Value
from autotune.core.environment import Environment as Environment
from autotune.core.errors import AutotuneError as AutotuneError
from autotune.core.errors import InvalidRequest as InvalidRequest
from autotune.core.interval import Interval as Interval
from autotune.core.io import Serializable as Serializable
from autotune.core.io import read_json as read_json
from autotune.core.io import write_json as write_json
from autotune.core.measurement import Measurement as Measurement
from autotune.core.measurement import Outcome as Outcome
from autotune.core.request import TuningRequest as TuningRequest
from autotune.core.step import Step as Step
from autotune.core.trial import Trial as Trial
from autotune.core.workload import Workload as Workload
