"""A model that has a name: find the fastest way to train it, and get it back as `TrainingArguments`.

    python examples/model_id.py

Put a hub id or the folder of a model where "bert-mini" (a small built-in one) stands, and your text file where Python's own
documentation stands.
"""

from pathlib import Path
from pydoc_data.topics import topics

import autotune

# Real text, one sample a line. Any text, CSV, JSON or Parquet file will do, and so does the id of a dataset on the hub.
text = Path("topics.txt")
if not text.exists():
    text.write_text("\n".join(line for topic in topics.values() for line in topic.splitlines() if line.strip()))

# Each of these trials is a short training in a process of its own. Every one makes steps of exactly 8 samples: the micro-batch
# size times the gradient accumulation steps never changes, so what is learnt stays comparable.
result = autotune.search(
    "bert-mini",
    global_batch_size=8,
    dataset=text,
    sequence_length=32,
    n_trials=3,
)

print(result.to_frame()[["number", "rank", "speedup", "samples_per_second", "peak_bytes", "precision"]])
print(f"{result.speedup:.2f} times as fast as the Trainer's defaults; why it ended: {result.stop_reason}")

# The answer, ready for your own Trainer. Everything that is not about speed is yours to say.
arguments = result.training_arguments(output_dir="output", learning_rate=1e-4)
print(
    arguments.per_device_train_batch_size, "x", arguments.gradient_accumulation_steps, "bf16" if arguments.bf16 else ""
)

# The batch is the one that was asked for, and no slower answer than the defaults is handed out.
assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps == 8
assert result.speedup.high >= 1
