"""Links between the GPUs of one machine, by their data sheets."""

from dataclasses import dataclass

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.io import Serializable


@dataclass(frozen=True)
class Link(Serializable):
    """A link between GPUs; bandwidth: 10^9 bytes / second that a GPU sends, while it receives as many."""

    name: str
    gigabytes_per_second: float
    source: str = "given as a number"


LINKS = {
    link.name: link
    for link in (
        Link("nvlink3", 300.0, "NVIDIA A100 data sheet: 600 GB/s, both directions together"),
        Link("nvlink4", 450.0, "NVIDIA H100 SXM data sheet: 900 GB/s, both directions together"),
        Link("nvlink5", 900.0, "NVIDIA B200 data sheet: 1.8 TB/s, both directions together"),
        Link("pcie4", 31.5, "PCI Express 4.0: 16 lanes of 16 GT/s, 128b/130b"),
        Link("pcie5", 63.0, "PCI Express 5.0: 16 lanes of 32 GT/s, 128b/130b"),
    )
}
"""Name -> link."""

EFFICIENCY = (0.4, 1.0)
"""Share of a data sheet's bandwidth that an all-reduce gets, at least and at most.

Large messages: 370 of 450 GB/s on eight H100 with a ring, and as if 480 with NVLink SHARP (NVIDIA/nccl-tests issue 212), 233 of
300 on eight A100 (issue 175). The lower end is an assumption for buckets of 25 MiB, which is what DDP sends.
"""


def find_link(link: str | float) -> Link:
    """The link of this name, or of this many GB/s. Raises InvalidRequest."""
    if link in LINKS:
        return LINKS[str(link)]
    try:
        speed = float(link)
    except ValueError:
        raise InvalidRequest(
            f"There is no link {link!r}.", f"{did_you_mean(link, LINKS)} Or a number, in GB/s."
        ) from None
    if not 0 < speed < float("inf"):
        raise InvalidRequest(f"A link of {link} GB/s sends nothing.", "Write a number above 0, in GB/s.")
    return Link(f"{speed:g} GB/s", speed)
