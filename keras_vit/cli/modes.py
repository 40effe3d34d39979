"""Which options apply only where a command line asks for something, in one table: elsewhere they are refused."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

TABLE_ENDINGS = (".csv", ".tsv", ".parquet")

_CLASSES = {"task": ("--task classification",)}
_TABLES = {"task": ("--task classification",), "data": ("tables",)}
_SEGMENTATION = {"task": ("--task segmentation",)}
_QUERIES = {"recipe": ("--recipe segmentation/eomt_...",)}
_HEAD = {"task": ("--task classification",), "way": ("the head",)}
_FEW_SHOT = {"task": ("--task classification",), "way": ("--few-shot",)}
_REPORTED = {"task": ("--task classification",), "way": ("the head", "--knn")}
# For options of a command, what a command line has to ask for, along the axes of `modes_of`; others always apply.
ONLY: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "finetune": {
        "crop mixup cutmix erasing sampling class_weight patch_drop randaugment teacher": _CLASSES,
        "file label separator target": _TABLES,
        "ignore reduce_zero_label": _SEGMENTATION,
        "annotations queries points": _QUERIES,
        "distill": {"teacher": ("--teacher",)},
    },
    "evaluate": {
        "few_shot knn image_size batch_size output": _CLASSES,
        "file label separator target": _TABLES,
        "ignore reduce_zero_label": _SEGMENTATION,
        "views threshold names_from": _HEAD,
        "seeds l2": _FEW_SHOT,
        "report": _REPORTED,
        "templates": {"names": ("--names-from",)},
    },
    "embed": {"features skip_unreadable shard": {"input": ("images",)}},
    "verify": {
        "picture": {"compares": ("published answers",)},
        "batch_size": {"compares": ("--data",)},
        "smallest": {"ledger": ("--ledger",)},
    },
}


def kind_of_data(data: str) -> str:
    """What DATA is: tables, digits, or folders and data sets of tensorflow-datasets."""
    if Path(data).suffix.lower() in TABLE_ENDINGS:
        return "tables"
    return "digits" if data == "digits" and not os.path.exists(data) else "folders"


def modes_of(values: Mapping[str, Any]) -> dict[str, str]:
    """What a command line asks for, by axis, in the words of messages."""
    way = "the head"
    if values.get("few_shot") is not None:
        way = "--few-shot"
    elif values.get("knn") is not None:
        way = "--knn"
    trains_queries = (values.get("recipe") or "").lower().startswith("segmentation/eomt")
    return {
        "task": f"--task {values.get('task')}",
        "recipe": "--recipe segmentation/eomt_..." if trains_queries else "other recipes",
        "data": kind_of_data(values.get("data") or ""),
        "teacher": "--teacher" if values.get("teacher") else "runs without a teacher",
        "way": way,
        "names": "--names-from" if values.get("names_from") else "classes of the head",
        "input": "--texts" if values.get("texts") else "images",
        "compares": ("--ledger" if values.get("ledger") else "--data" if values.get("data") else "published answers"),
        "ledger": "--ledger" if values.get("ledger") else "runs without a ledger",
    }


def refuse_unused(command: str, given: Collection[str], values: Mapping[str, Any]) -> None:
    """Raises ValueError if an option that was given does not apply to what the command line asks for."""
    modes = modes_of(values)
    for names, needs in ONLY.get(command, {}).items():
        for name in names.split():
            for axis, allowed in needs.items():
                if name in given and modes[axis] not in allowed:
                    flag = f"--{name.replace('_', '-')}"
                    raise ValueError(f"{flag} is for {' and '.join(allowed)}, not for {modes[axis]}: leave it out.")
