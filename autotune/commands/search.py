"""`search`: from a request to its result."""

import dataclasses
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Unpack

from autotune.commands.finished import finished_study, request_fingerprint
from autotune.core.note import Note, NoteKind
from autotune.core.random_state import kept_random_state
from autotune.core.request import SearchOptions, TuningRequest, accepts, tuning_request
from autotune.core.time_limit import TimeLimit
from autotune.executors import Executor
from autotune.executors.local import first_host, lock_card
from autotune.probe import Host
from autotune.probe.process.guard import why_unguarded
from autotune.probe.process.launcher import HostSet
from autotune.space.user_arguments import left_out, read_user_arguments
from autotune.study.limits import check_request
from autotune.study.plan import Watch
from autotune.workload.model.pickling import Payload, as_payload

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult


@kept_random_state()
@accepts(SearchOptions)
def search(
    model: str | os.PathLike[str] | Payload,
    global_batch_size: int,
    *,
    watch: Watch | bool | None = None,
    probes: Callable[[bytes], AbstractContextManager[Host]] | None = None,
    started: float | None = None,
    **options: Unpack[SearchOptions],
) -> "TuningResult":
    """Find the fastest configuration that fits; every option of `autotune search` is an argument here.

    Args:
        model: A built-in name, folder, config JSON or hub id; or what `tune` sends.
        global_batch_size: Samples in one optimizer step, over all ranks: exact in every trial.
        watch: Called with a Progress for everything that happens. By default, or by True, progress is shown: in place in a
            notebook or a terminal, else as a line an event on standard error; by False, it is not.
        probes: Makes what starts probes from the caller's pickled objects; by default a `HostSet`, with processes on this
            machine.
        started: Reading of the monotonic clock from which the timeout counts; by default this call's.
        **options: Each as a keyword.
        {options}

    Raises:
        InvalidRequest: The request cannot be carried out as it is.
        NothingFits: No configuration fits the device under the limit.
        TimeIsOver: The time limit ended before the baseline was measured.
        StudyInUse: Another process holds the study's folder.
        StorageFailed: The report folder cannot be written.
        SearchFailed: No trial completed, for another reason than memory.
        KeyboardInterrupt: At the first Ctrl-C once the running probe is done, at the second at once; from the first probe on,
            the report of what is known was written before.
    """
    own, fresh = read_user_arguments(options.pop("args", None)), options.pop("fresh", False)
    brought = as_payload(model)
    request = tuning_request(brought.name, global_batch_size, args=own.fields, **options)
    notes = (*left_out(own.unsent), *brought.notes)
    limit = TimeLimit(request.timeout_s, time.monotonic() if started is None else started)
    card = check_request(request, own_data=bool(brought.pickled))
    fingerprint = "" if brought.pickled else request_fingerprint(request)
    result = finished_study(request, fingerprint) if fingerprint and not fresh else None
    if result is None:
        with ExitStack() as stack:
            executors = stack.enter_context(_on_ray(request, brought.pickled)) if request.executor == "ray" else []
            hosts: list[Host] = [executor.host for executor in executors]
            if not executors:
                notes = (*notes, *lock_card(card, stack))
                start = probes or first_host(request, card) or HostSet
                hosts.append(stack.enter_context(start(brought.pickled)))
            elif request.devices != "all" and (lost := int(request.devices) - len(executors)):
                notes = (*notes, Note(NoteKind.LOST_DEVICES, {"lost": lost, "devices": int(request.devices)}))
            for host in hosts:
                host.time_limit = limit
            if brought.pickled and (unguarded := why_unguarded()):
                notes = (*notes, Note(NoteKind.UNGUARDED, detail=unguarded))
            # Optuna, pandas and SciPy are imported while the host imports torch and transformers.
            from autotune.commands.setup import SearchCall, open_setup
            from autotune.commands.study import print_answer, run

            sent = dataclasses.replace(brought, notes=notes)
            call = SearchCall(request, sent, own.source, hosts[0], card, executors, fresh, fingerprint)
            with open_setup(call, watch) as setup:
                result = run(setup)
            print_answer(result, watch)
    user = own.user if brought.user_arguments is None else brought.user_arguments
    return dataclasses.replace(result, user_arguments=user)


def _on_ray(request: TuningRequest, objects: bytes) -> AbstractContextManager[list[Executor]]:
    from autotune.executors.ray import on_cluster

    return on_cluster(request, objects)
