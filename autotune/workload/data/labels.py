"""Labels of the data: classes, several of them for a sample, or numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import datasets

from autotune.core.errors import InvalidRequest
from autotune.workload.data.features import element, unfit

SINGLE, SEVERAL, NUMBERS = "single_label_classification", "multi_label_classification", "regression"
"""Values of `problem_type` in a model's config."""


@dataclass(frozen=True)
class Labels:
    """Conversion of a column's values into the model's labels."""

    count: int  #: outputs of the model: classes, or numbers of a sample
    ids: Mapping[Any, int] | None = None  #: value -> class id; None if the values are class ids or numbers already
    problem: str = SINGLE  #: `problem_type` of the config
    is_vector: bool = False  #: a value is a list of `count` numbers: of 0 and 1 for classes

    def of(self, value: Any) -> int | float | list[float] | None:
        """The label of a value; None if the row has none."""
        if value is None or value != value:  # NaN
            return None
        if self.is_vector:
            return [float(number) for number in value]
        if self.problem == SEVERAL:
            classes = {self._class(name) for name in value if name is not None}
            return [float(number in classes) for number in range(self.count)]
        if self.problem == NUMBERS:
            return float(value)
        label = self._class(value)
        return label if label >= 0 else None

    def _class(self, value: Any) -> int:
        return int(value) if self.ids is None else self.ids[value]


def read_labels(data: Any, column: str, classes: int, task: str) -> Labels:
    """The classes in a column of labels, or of lists of labels; classes: number of classes in the model's config.

    A list is several labels of a sample, for token-classification one of each word. Raises InvalidRequest.
    """
    feature = element(data.features[column])
    rows = [value for value in data[column] if value is not None]
    several = task == "sequence-classification" and any(isinstance(row, list) for row in rows)
    problem = SEVERAL if several else SINGLE
    if isinstance(feature, datasets.ClassLabel):
        return Labels(feature.num_classes, problem=problem)
    values: set[Any] = set()
    for row in rows:
        labels = row if isinstance(row, list) else (row,)
        if any(isinstance(value, (list, dict)) for value in labels):
            raise unfit(data, column, "labels", "label")
        values.update(value for value in labels if value == value)  # not NaN
    has_gaps = len(rows) < len(data) or None in values
    # -100 is not a class: the loss ignores it.
    values -= {None, -100}
    if not values:
        raise InvalidRequest(f"The column {column!r} holds no labels.", "Name another one with --label-column.")
    if not all(isinstance(value, (str, int, float)) for value in values):
        raise unfit(data, column, "labels", "label")
    if several and (vector := _vector(rows, values)):
        return vector
    if any(isinstance(value, float) for value in values):
        whole = all(isinstance(value, str) or float(value).is_integer() for value in values)
        # A column of integers in which some are missing is read as floats.
        if not whole or not (has_gaps or values == set(range(len(values)))):
            if several or task != "sequence-classification":
                raise unfit(data, column, "as many numbers in each row" if several else "classes", "label")
            return Labels(1, problem=NUMBERS)
    numbers = not any(isinstance(value, (str, bool)) for value in values)
    if numbers and min(values) >= 0 and max(values) < max(len(values), classes):
        return Labels(int(max(values)) + 1, problem=problem)
    # A mix of numbers and words can only be sorted as words.
    ordered = sorted(values, key=str if any(isinstance(value, str) for value in values) else None)
    return Labels(len(ordered), {value: number for number, value in enumerate(ordered)} | {-100: -100}, problem)


def _vector(rows: list[Any], values: set[Any]) -> Labels | None:
    """Labels that are lists of equal length: of 0 and 1 (or between) for classes, else several numbers to predict."""
    sizes = {len(row) for row in rows}
    size = sizes.pop()
    if sizes or size < 2 or any(None in row for row in rows) or any(isinstance(value, str) for value in values):
        return None
    if all(0 <= value <= 1 for value in values):
        return Labels(size, problem=SEVERAL, is_vector=True)
    return Labels(size, problem=NUMBERS, is_vector=True) if any(isinstance(value, float) for value in values) else None
