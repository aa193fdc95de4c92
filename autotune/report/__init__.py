"""Trials -> tables and files for people and programs; everything here takes trials and plain values."""

from autotune.report.exports import EXPORTS

FILES = (
    "environment.json",
    "result.json",
    "trials.csv",
    "trials.parquet",
    "best_training_arguments.json",
    "best_model_arguments.json",
    "best_environment_variables.json",
    *EXPORTS,
    "best_data_arguments.json",
    "best_adapter.json",
    "summary.md",
    "report.html",
    "speed_against_memory.svg",
    "verification.json",
    "explanation.json",
    "realized.json",
)
"""Files of a report folder besides request.json, study.db and probes/."""
