"""Our own `.npz` of dense models: each weight by its path, and the config in the note beside them."""

from collections.abc import Mapping
from typing import Any

from keras_vit import layers, models
from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import Contents, Layout, Row
from keras_vit.checkpoints.described import CONFIG_TYPES, check_size
from keras_vit.checkpoints.stored_array import StoredArray


def _rows(config: Any) -> list[Row]:
    with layers.skip_initialization():  # takes no memory
        weights = models.weights_by_path(getattr(models, config.model)(config))
    return [Row(path, path, tuple(weight.shape)) for path, weight in weights.items()]


def read(file: Mapping[str, StoredArray], hints: Mapping[str, Any]) -> Contents:
    """Describes a file by its note, which may be a stranger's."""
    for name in ("backbone", "grid_size", "heads", "like", "max_depth"):
        if hints.get(name) is not None:
            option = "head" if name == "backbone" else name
            raise ValueError(f"it says all of its model itself: leave {option}=... out.")
    note = hints["note"]
    try:
        config = CONFIG_TYPES[note["model"]](**note["config"])
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"its note says nothing sensible about its model: {printable(error, 200)}.") from None
    if not isinstance(config, models.DenseConfig):
        raise ValueError(f"its note names the model {note['model']!r}, which is not stored so.")
    check_size(hints["path"], config, sum(array.bytes for array in file.values()))
    contents = Contents(prefix="", arrays=dict(file), unused=[], hints=hints)
    contents.layout, contents.dialect, contents.stored = LAYOUT, "keras_vit", config
    return contents


def note_of(config: Any) -> dict[str, Any]:
    """What stands beside the weights."""
    return {"written_by": "keras_vit", "model": config.model, "config": config.to_dict()}


LAYOUT = Layout("keras_vit", _rows, config_type=models.DenseConfig)
