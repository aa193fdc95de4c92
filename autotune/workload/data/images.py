"""Images, decoded and resized as they are loaded, so that loader workers have the work of a real training."""

from typing import Any

import datasets
import numpy as np
import torch

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Channels -> PIL's mode of such images."""


class ImageSamples:
    """A map-style dataset of the rows (`image`, `labels`) of a `datasets.Dataset`.

    Not a `datasets.Dataset` itself: the Trainer would drop the column `image`, which no model takes.
    An item: pixel_values of [channels, height, width] float32 in -1..1, labels an int.
    """

    def __init__(self, rows: Any, shape: tuple[int, int, int]) -> None:
        self._rows = rows
        self._shape = shape

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            row = self._rows[index]
            return {"pixel_values": pixels(row["image"], self._shape), "labels": row["labels"]}
        except OSError as error:
            raise ValueError(f"The image {_name(self._rows, index)} cannot be decoded: {error}.") from error


def _name(rows: Any, index: int) -> str:
    """Name of an image, for people."""
    row = rows.cast_column("image", datasets.Image(decode=False))[index]
    return str(row["image"]["path"] or f"in row {index + 1}")


def pixels(image: Any, shape: tuple[int, int, int]) -> torch.Tensor:
    """An image of PIL as a tensor of that shape (channels, height, width), float32 in -1..1."""
    from PIL import Image

    channels, height, width = shape
    resized = image.convert(MODES[channels]).resize((width, height), Image.Resampling.BILINEAR)
    values = np.asarray(resized, dtype=np.float32).reshape(height, width, channels) / 127.5 - 1.0
    return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))
