"""What layouts of dense models share: a head and the backbone that it belongs to."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.checkpoints.accounting import Contents, Layout, Row
from keras_vit.checkpoints.stored_array import StoredArray


def joined(
    backbone: Contents,
    config: Any,
    rows: Callable[[Any], list[Row]],
    arrays: Mapping[str, StoredArray],
    title: str,
    unused: tuple[str, ...] = (),
) -> Contents:
    """The contents of a model of two files: those of its backbone, and the arrays and rows of its head.

    What a backbone's own file has at its top is left out. What is assumed of it stands among the notes.
    """
    below = backbone.layout
    wanted = {row.name for row in below.rows(config.backbone)}
    kept = {name: array for name, array in backbone.arrays.items() if name in wanted}
    left = sorted(array.name for name, array in backbone.arrays.items() if name not in wanted)
    found = dataclasses.replace(
        backbone,
        arrays={**kept, **arrays},
        unused=[*backbone.unused, *left, *unused],
        head=(),
        assumed={},
        guessed_size=None,
        notes=[*backbone.notes, *backbone.assumed.values()],
    )
    found.layout = Layout(
        title,
        lambda config: [*below.rows(config.backbone), *rows(config)],
        computed=lambda config: below.computed(config.backbone),
        settled_by="",
        config_type=type(config),
    )
    found.dialect, found.stored = title, config
    return found
