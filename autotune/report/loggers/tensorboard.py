"""TensorBoard: scalars by trial, a table of hyperparameters, texts; written without TensorFlow, torch or threads.

<study>/tensorboard/                 scalars by trial, the study's facts, the answer
                    trial-0007/      that trial's configuration and numbers: a row of the HParams table
"""

import time
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_STRING
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.scalar import metadata as scalars
from tensorboard.plugins.text import metadata as texts
from tensorboard.summary.writer.record_writer import RecordWriter

from autotune.core.configuration import Value
from autotune.report.formats import formatted
from autotune.report.loggers.events import Ending, LoggedTrial, StudyEvent
from autotune.study.store import TENSORBOARD

METRICS = ("samples_per_second", "peak_bytes", "probe_seconds")
"""Columns of the HParams table next to the configuration."""


def start(study: StudyEvent) -> "Logger":
    """Begin or resume in the study's folder: TensorBoard reads several event files there as one run."""
    logger = Logger(study.folder / TENSORBOARD, study.run)
    if not study.resumed:
        logger.begin(study)
    return logger


class Logger:
    """See `autotune.report.loggers.Logger`."""

    def __init__(self, folder: Path, run: str) -> None:
        self.run = run
        self._folder = folder
        self._events = _Events(folder)

    def begin(self, study: StudyEvent) -> None:
        """The study's facts as text, and the columns of the HParams table."""
        metrics = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=name)) for name in METRICS]
        experiment = api_pb2.Experiment(name=study.name, metric_infos=metrics, time_created_secs=time.time())
        data = plugin_data_pb2.HParamsPluginData(experiment=experiment)
        self._events.write(_hparams(hparams.EXPERIMENT_TAG, data))
        self._events.write(_text("study", table_of(study.facts)))

    def log(self, row: LoggedTrial) -> None:
        """Scalars at the trial's number, and its own row of the HParams table."""
        self._events.write(*(_scalar(name, number) for name, number in row.numbers.items()), step=row.number)
        session = plugin_data_pb2.SessionStartInfo(group_name=f"trial-{row.number:04d}", start_time_secs=time.time())
        for name, value in row.values.items():
            _set(session.hparams[name], value)
        status = api_pb2.STATUS_SUCCESS if row.outcome == "completed" else api_pb2.STATUS_FAILURE
        end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
        own = _Events(self._folder / f"trial-{row.number:04d}")
        own.write(
            _hparams(hparams.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=session)),
            *(_scalar(name, row.numbers[name]) for name in METRICS if name in row.numbers),
            _hparams(hparams.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=end)),
            step=row.number,
        )

    def finish(self, ending: Ending) -> None:
        """The answer as text and scalars, and every trial as a table in text."""
        self._events.write(
            *(_scalar(f"answer/{name}", number) for name, number in ending.numbers.items()),
            _text("answer", table_of({**ending.words, **ending.values})),
            _text("trials", str(formatted(ending.table, "markdown"))),
            step=len(ending.table),
        )


class _Events:
    """An event file of its own in this folder, whole after every write; named without the machine's name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{time.time_ns():020d}.autotune"
        self._record(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, *values: Summary.Value, step: int = 0) -> None:
        self._record(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _record(self, event: Event) -> None:
        with self._path.open("ab") as file:
            RecordWriter(file).write(event.SerializeToString())


def _scalar(tag: str, number: float) -> Summary.Value:
    """In double precision: a peak of gigabytes stays exact to the byte."""
    tensor = TensorProto(dtype=DT_DOUBLE, tensor_shape=TensorShapeProto(), double_val=[number])
    return Summary.Value(tag=tag, tensor=tensor, metadata=scalars.create_summary_metadata("", ""))


def _text(tag: str, markdown: str) -> Summary.Value:
    tensor = TensorProto(dtype=DT_STRING, tensor_shape=TensorShapeProto(), string_val=[markdown.encode()])
    return Summary.Value(tag=tag, tensor=tensor, metadata=texts.create_summary_metadata("", ""))


def _hparams(tag: str, data: plugin_data_pb2.HParamsPluginData) -> Summary.Value:
    metadata: SummaryMetadata = hparams.create_summary_metadata(data)
    return Summary.Value(tag=tag, metadata=metadata, tensor=hparams.NULL_TENSOR)


def _set(place: Mapping[str, object], value: Value) -> None:
    kind = "bool_value" if isinstance(value, bool) else "string_value" if isinstance(value, str) else "number_value"
    setattr(place, kind, value)


def table_of(values: Mapping[str, Value]) -> str:
    """Names and values as a Markdown table."""
    cells = {"name": list(values), "value": list(map(str, values.values()))}
    return str(formatted(pd.DataFrame(cells, dtype="string"), "markdown"))
