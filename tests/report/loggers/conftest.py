"""Loggers offline, in a folder of the test's own."""

from pathlib import Path

import pytest

from tests.report.loggers.studies import SECRET


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, nothing outside the test's folder, and a secret in the environment that none may tell."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_CACHE_DIR": str(tmp_path / "wandb-cache"),
        "WANDB_DATA_DIR": str(tmp_path / "wandb-data"),
        "WANDB_CONFIG_DIR": str(tmp_path / "wandb-config"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_TOKEN": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
