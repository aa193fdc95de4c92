"""The answer as YAML for transformers' own parser: the same fields and values as best_training_arguments.json."""

from autotune.report.exports.answer import Answer
from autotune.report.exports.commented_yaml import commented_yaml


def training_arguments_yaml(answer: Answer) -> str:
    """Every field of the answer, those that stand at None too."""
    head = ["(arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file('best_training_arguments.yaml')"]
    return commented_yaml(head, answer.training_arguments)
