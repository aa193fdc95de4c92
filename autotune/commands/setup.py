"""Setup of a search: how it was called, and what it is made of once its device, model and data are read."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from importlib import import_module
from typing import cast

from autotune.commands.result import TuningResult
from autotune.commands.save import begin
from autotune.core import Environment, TuningRequest, Workload
from autotune.core.configuration import RANKS
from autotune.core.note import Note, NoteKind
from autotune.core.stop_reason import KILLED
from autotune.core.warning import ResultWarning, WarningKind
from autotune.executors import Executor, ExecutorHost
from autotune.executors.local import can_be_joined, cores_of, local_executors, lock_card
from autotune.probe import Host
from autotune.probe.device import nvml
from autotune.probe.process.launcher import on_cores
from autotune.probe.queries import read_environment, read_workload
from autotune.report import FILES
from autotune.report.live.views import following
from autotune.space.build import build_space
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS, Context
from autotune.space.setup import check_fields, what_differs
from autotune.space.tensor_cores import advice
from autotune.study.history import Remembered, recall
from autotune.study.identity import study_identity
from autotune.study.limits import check_model_fits, least_bytes, memory_limit, most_shards
from autotune.study.loop import open_study
from autotune.study.plan import Watch, plan_of
from autotune.study.store import check_identity, is_unmeasured, locked, remove_study
from autotune.study.study import Study
from autotune.workload.model.pickling import Payload


@dataclass(frozen=True)
class SearchCall:
    """Call of a search.

    payload: what was sent, with the notes on all of the call. source: of the user's own arguments, for people. executors: on
    other machines, the host is the first one's; none on this one. fresh: nothing of an earlier search is used. fingerprint: of
    the request, empty if another one cannot be told from it.
    """

    request: TuningRequest
    payload: Payload
    source: str
    host: Host
    card: nvml.Card | None
    executors: Sequence[Executor]
    fresh: bool
    fingerprint: str


@dataclass(frozen=True)
class SearchSetup:
    """Parts of a search: its study is open, and its folder and devices are held.

    unmeasured: the result before the first probe. context: device, workload and the user's arguments. executors: all devices,
    that of this process's host too. past: of earlier studies, what is to be used. fingerprint: as in `SearchCall`.
    """

    unmeasured: TuningResult
    context: Context
    study: Study
    executors: Sequence[Executor]
    past: Remembered
    fingerprint: str
    watch: Watch


@contextmanager
def open_setup(call: SearchCall, watch: Watch | bool | None) -> Iterator[SearchSetup]:
    """Read device, model and data, and open the study. Raises what `search` raises."""
    for name in ("pandas", "sqlalchemy.orm", "alembic.command"):  # for report and study, while the host imports its own
        import_module(name)
    with following(watch) as show, ExitStack() as stack:
        unmeasured, space, executors = _read(call, stack)
        request, workload, folder = unmeasured.request, unmeasured.workload, unmeasured.folder
        assert folder is not None
        with locked(folder):
            if call.fresh or is_unmeasured(folder):
                remove_study(folder, FILES)
            check_identity(folder, unmeasured.identity)
            begin(unmeasured, folder)
            plan = plan_of(request, unmeasured.environment, call.host.time_limit, unmeasured.allowed_bytes)
            plan = replace(plan, keep_numerics=plan.keep_numerics or call.payload.trains_on)
            past = Remembered() if request.no_history else recall(unmeasured.environment, unmeasured.identity)
            if call.fresh or workload.user_objects:
                past = replace(past, trials=())
            context = Context(unmeasured.environment, workload, request.training_args)
            study = open_study(folder, space, plan)
            yield SearchSetup(unmeasured, context, study, executors, past, call.fingerprint, show)


def _read(call: SearchCall, stack: ExitStack) -> tuple[TuningResult, SearchSpace, Sequence[Executor]]:
    """(Result with what is known before the first probe, space, devices). stack: for further hosts and locks."""
    host, request, others, notes = call.host, call.request, call.executors, call.payload.notes
    with on_cores(cores_of(host)):
        environment, card = (others[0].environment, None) if others else read_environment(host, request, call.card)
    unused = [ResultWarning(WarningKind.UNUSED_GPU, detail=environment.unused_gpu)] if environment.unused_gpu else []
    check_fields(request.training_args, environment, call.source)
    request = replace(request, training_args=what_differs(request.training_args, environment))
    workload = others[0].workload if others else read_workload(host, request)
    executors = others or local_executors(host, request, card, workload, stack)
    space_environment = environment
    if len(executors) > 1:
        free = min(executor.environment.free_memory_bytes for executor in executors)  # on any of the devices
        environment = replace(environment, free_memory_bytes=free)
        # Ranks take devices of their own, on this machine.
        count = len(executors) if can_be_joined(executors) else 1
        space_environment = replace(environment, device_count=count)
    space = build_space(request, space_environment, workload, request.training_args)
    if not executors:
        ranks = max(map(int, space.possible_values(RANKS)), default=1)
        for other in nvml.visible_cards() if card else ():
            if other.uuid in environment.device_uuids[1:ranks]:
                notes = (*notes, *lock_card(other, stack))
        own = cast("ExecutorHost", host)  # it is never lost
        executors = [Executor("", own, environment, workload, device_used=nvml.usage_of(card))]
    unmeasured = _unmeasured(request, environment, workload, space, call.fresh)
    notes, warnings = (*unmeasured.notes, *notes), (*call.payload.warnings, *unused)
    return replace(unmeasured, notes=notes, study_warnings=warnings), space, executors


def _unmeasured(
    request: TuningRequest, environment: Environment, workload: Workload, space: SearchSpace, fresh: bool
) -> TuningResult:
    """Result with what is known before the first probe.

    Raises InvalidRequest for a limit above the device, NothingFits for one below what the model alone needs.
    """
    folder = request.study_folder(workload.task, environment.device)
    limit = memory_limit(request, environment, None if fresh or is_unmeasured(folder) else folder)
    allowed, values = int(limit * (1 - request.headroom)), space.values
    if not any(SETTINGS[name].costs.spares_gradients(value) for name in values for value in values[name]):
        check_model_fits(workload, allowed, limit, least_bytes(space, environment), most_shards(space))
    learning = ", ".join(space.learns_differently)
    return TuningResult(
        request=request,
        workload=workload,
        environment=environment,
        trials=(),
        stop=KILLED,
        complete=False,
        date=date.today().isoformat(),
        memory_limit_bytes=limit,
        allowed_bytes=allowed,
        space_size=space.size,
        ruled_out=space.ruled_out,
        notes=(
            *space.notes,
            *([Note(NoteKind.LEARNING, detail=learning)] if learning else ()),
            *advice(workload.model_config, environment, space.possible_values("precision")),
        ),
        identity=study_identity(request, environment, workload, space),
        folder=folder,
    )
