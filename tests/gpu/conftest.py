"""What every test on a GPU needs: a card that this process may use, and a torch built for it."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip them all with the reason where there is none."""
    reason = _why_not()
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_not() -> str:
    from autotune.probe.device import visible_cards

    if not visible_cards():  # asked of NVML: asking torch would wake CUDA in this process
        return "needs a CUDA GPU: NVML shows none that this process may use"
    import torch

    return "" if torch.version.cuda else f"needs a torch built for CUDA: this is {torch.__version__}"
