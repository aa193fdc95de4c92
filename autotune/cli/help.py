"""Texts of the help that are not of an option: examples, and what to start with."""

EXAMPLES = """
autotune search gpt2-mini -b 16 --sequence-length 32 --device cpu --n-trials 4
autotune search org/model -b 32 --dataset train.jsonl --timeout 30m
autotune search ./model -b 64 --args arguments.json --keep-numerics
autotune run -- python train.py --output_dir output
autotune run --train -- torchrun --nproc-per-node 2 train.py
autotune estimate gpt2-large -b 32 --gpu 4090
autotune estimate org/model -b 16 --memory-limit 24GiB
autotune doctor --all
autotune report first
autotune report first --format csv
autotune report first --output first.csv
autotune apply first sft.yaml
autotune apply first -- torchrun train.py --bf16 True
autotune explain first
autotune verify first --seconds 120
autotune compare first second --price-per-hour 2.50EUR
autotune studies --output-dir reports
autotune serve --models team=/srv/models --data team=/srv/data
autotune token create anna --role submitter --days 90
autotune login https://tune.example.org
autotune search-spaces
autotune guide bert-mini --device cpu
"""
"""Commands to start from, at the end of each command's help."""

START = """autotune finds the fastest TrainingArguments for your model on your hardware.

A first search, on a built-in model:
  autotune search gpt2-mini -b 16 --sequence-length 32 --device cpu --n-trials 4

  autotune run -- python train.py                    your own program
  autotune search MODEL -b 32 --dataset train.jsonl  your own data
  autotune estimate MODEL -b 32 --gpu 4090           will it fit?
  autotune doctor                                    what works here
  autotune studies                                   your results

All commands: autotune --help     Options of a command: autotune search --help"""
"""Output of `autotune` without arguments."""


def examples(name: str) -> list[str]:
    """The examples of a command."""
    return [line for line in EXAMPLES.splitlines() if line.split()[1:2] == [name]]
