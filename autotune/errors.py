"""Errors and warnings of autotune, to catch and to filter; `autotune.core.errors` draws their tree."""

from autotune.core.errors import AutotuneError as AutotuneError
from autotune.core.errors import BatchSizeChanged as BatchSizeChanged
from autotune.core.errors import DeviceInUse as DeviceInUse
from autotune.core.errors import DevicesAway as DevicesAway
from autotune.core.errors import InvalidRequest as InvalidRequest
from autotune.core.errors import InvalidSpace as InvalidSpace
from autotune.core.errors import LossWarning as LossWarning
from autotune.core.errors import NotApplied as NotApplied
from autotune.core.errors import NothingFits as NothingFits
from autotune.core.errors import ProbeHostFailed as ProbeHostFailed
from autotune.core.errors import PromiseMissed as PromiseMissed
from autotune.core.errors import SearchFailed as SearchFailed
from autotune.core.errors import ServerFailed as ServerFailed
from autotune.core.errors import StorageFailed as StorageFailed
from autotune.core.errors import StudyInUse as StudyInUse
from autotune.core.errors import StudyMismatch as StudyMismatch
from autotune.core.errors import TimeIsOver as TimeIsOver
from autotune.core.errors import TracingFailed as TracingFailed
from autotune.core.errors import UnreadableFile as UnreadableFile
