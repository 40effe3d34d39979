"""Files that contain the whole config of their model: `.keras`, `.weights.h5`, and `.safetensors` and `.npz` of ours.

The last two have each weight by its path, and the config in the note beside them. What a file says of its model is
checked before anything is built, because it may be a stranger's.
"""

import contextlib
import functools
import io
import json
import math
import os
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit import layers, models
from keras_vit._arguments import printable
from keras_vit._files import check_room, make_folder, replacing
from keras_vit.checkpoints.accounting import MOST_BLOCKS, Layout, Plan, Row
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ModelConfig, ViTConfig, count_weights

if TYPE_CHECKING:
    import keras

    from keras_vit.models import BiT, VisionTransformer

_CONFIG_TYPES: dict[str, type[Any]] = {
    kind.model: kind
    for kind in (
        *(ViTConfig, models.BiTConfig, models.EoMTConfig, models.LinearSegmenterConfig),
        *(models.DPTConfig, models.MultiTaskDPTConfig, models.LinearDepthConfig, models.DetectorConfig),
        *(models.AnomalyConfig, models.TextConfig),
    )
}
LONGEST_CONFIG = 2**24  # bytes; that of a model with the 21,843 names of ImageNet-21k has a twentieth of it
_MOST_PATCHES = 2**18  # of an image, whose tables are computed and not in the file: 8192 x 8192 pixels in patches of 16
_LONGEST_SIDE = 2**24  # pixels of an image
_MOST_BYTES = 64  # a weight of float64, beside it those of its optimizer and its adapters
_MOST_BESIDE = 2**24  # what else a file holds
_WEIGHTS = "model.weights.h5"  # what Keras calls the weights inside a .keras file
_MEMBERS = {"metadata.json", "config.json", _WEIGHTS}
_NOTE = "keras_vit"  # the attribute of a .weights.h5 file that says which model it is of


def write_keras(model: "keras.Model", path: pathlib.Path) -> None:
    """Writes a `.keras` or, with the description of the model beside the weights, a `.weights.h5` file."""
    from keras_vit._keras import without_importing_tensorflow  # imports Keras, which is not needed to look into a file

    make_folder(path.parent)
    with replacing(path) as temporary, without_importing_tensorflow():
        if path.suffix == ".keras":
            model.save(temporary)
            return
        import h5py
        import keras

        # HDF5 ends the process where it cannot write, when its file is closed. Each array has a header.
        weights = [math.prod(weight.shape) * np.dtype(weight.dtype).itemsize for weight in model.weights]
        check_room(temporary, sum(weights) + 2**13 * len(weights) + 2**20)
        model.save_weights(temporary)
        with h5py.File(temporary, "r+") as file:
            file.attrs[_NOTE] = json.dumps(keras.saving.serialize_keras_object(model))


def read_keras(path: str | os.PathLike[str]) -> "VisionTransformer | BiT":
    """Returns the model in a `.keras` file, not compiled, or in a `.weights.h5` that `save_model` wrote."""
    # HDF5, which reads the weights, has no checksums: damage to a `.weights.h5` may go unnoticed. Nor is it made for
    # malicious files: ask for an `.npz` from sources that you do not trust.
    import keras

    path = pathlib.Path(path)
    description, config = _describe(path)
    if description is None:
        raise ValueError(
            f"{path} has weights, but not the config of their model. Build the model with this file, for example "
            f"keras_vit.ViT_B16(weights={str(path)!r})."
        )
    if config is None:
        raise ValueError(f"{path} must hold a model of keras_vit, but it holds another one. Load it with Keras.")
    # Keras looks among the classes that have been imported; the program imports none that it has not used yet.
    getattr(models, config.model)
    try:
        check_unpacked(path, config)
        with layers.skip_initialization():  # Keras raises where the file does not hold a weight
            if path.suffix == ".keras":
                return keras.saving.load_model(path, compile=False)
            model = keras.saving.deserialize_keras_object(json.loads(description))
        model.load_weights(path)
        return model
    except MemoryError:
        raise
    except Exception as error:  # Keras and HDF5 raise what the wrong bytes lead them to
        raise ValueError(
            f"{path} cannot be loaded: it is damaged, or was written by another version of Keras or keras_vit. "
            f"Download or save it again. The error was: {printable(error, 300)}"
        ) from error


def config_in_file(path: str | os.PathLike[str]) -> ModelConfig | None:
    """The config in a `.keras` or `.weights.h5` file; None for one without a config or of another package."""
    return _describe(pathlib.Path(path))[1]


def _describe(path: pathlib.Path) -> tuple[Any, ModelConfig | None]:
    """Returns the JSON text in a file that describes its model, None for none, and the config in it, if it is ours."""
    import h5py

    path.open("rb").close()  # HDF5 has OSErrors for damage, too
    try:
        if path.suffix != ".keras":
            with h5py.File(path) as file:
                text, size = file.attrs.get(_NOTE), path.stat().st_size
        else:
            with zipfile.ZipFile(path) as archive:
                sizes = {member.filename: member.file_size for member in archive.infolist()}
                # Keras unpacks other members beside the file. None of ours has any.
                if sizes.keys() - _MEMBERS or len(archive.infolist()) > len(sizes):
                    raise ValueError(f"it must have only {sorted(_MEMBERS)}, but it has {sorted(sizes)}")
                if sizes["config.json"] > LONGEST_CONFIG:
                    raise ValueError(f"config.json has {sizes['config.json']:,} bytes, more than {LONGEST_CONFIG:,}")
                text, size = archive.read("config.json"), sizes.get(_WEIGHTS, 0)
    except Exception as error:  # `zipfile`, HDF5 and their libraries raise what the wrong bytes lead them to
        kind = "a .keras file of keras_vit" if path.suffix == ".keras" else "an HDF5 file"
        raise ValueError(f"{path} is not {kind} or is damaged: {printable(error, 200)}.") from None
    config = None if text is None else _config_of(path, text)
    if config is not None:
        check_size(path, config, size)  # counting the weights of a hostile config would take all memory
    return text, config


def _config_of(path: pathlib.Path, text: Any) -> ModelConfig | None:
    """Returns the config in the JSON text that describes the model of a file; None if it is of another package."""
    with _readable(str(path)):
        model = json.loads(text)
        name = model.get("class_name") if isinstance(model, dict) else None
        if name not in _CONFIG_TYPES or model.get("registered_name") != f"keras_vit>{name}":  # Keras goes by both
            return None
        return _CONFIG_TYPES[name](**model["config"]["config"])


@contextlib.contextmanager
def _readable(source: str) -> Iterator[None]:
    """Raises ValueError where what a file says of its model makes no sense."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        reason = printable(error, 200).rstrip(".")
        raise ValueError(
            f"{source} has a model config that cannot be read: {reason}. Save the model again with this version of "
            "keras_vit, or download it again."
        ) from None


def check_size(path: str | os.PathLike[str], config: Any, size: int) -> None:
    """Raises ValueError where a model of a config cannot be in a file with `size` bytes of weights; builds nothing."""
    # A weight takes four bits at least (int4). Numbers of blocks and patches, which cost nothing in a file, are
    # bounded.
    trunk = getattr(config, "backbone", config)
    is_vit, is_text = isinstance(trunk, ViTConfig), isinstance(trunk, models.TextConfig)
    blocks = sum(trunk.stages) if isinstance(trunk, models.BiTConfig) else trunk.depth
    blocks += sum(trunk.stem_stages or ()) if is_vit else 0
    least = blocks * trunk.width**2 // 2  # a block or unit has more weights than its width squared
    if least <= size:
        blocks = max(blocks, getattr(config, "upscale_blocks", 0))
        patches = math.prod(trunk.grid_size) if is_vit and not trunk.dynamic else 0
        for most, number, what in (
            (MOST_BLOCKS, blocks, "blocks"),
            (_MOST_PATCHES, patches, "patches"),
            (_MOST_PATCHES, trunk.context if is_text else 0, "tokens"),
            (_LONGEST_SIDE, 0 if is_text else max(trunk.image_size), "pixels on a side"),
        ):
            if number > most:
                raise ValueError(f"{path} is damaged: its model has more than {most:,} {what}. Download it again.")
        least = count_weights(config) // 2
    if least > size:
        raise ValueError(f"{path} is damaged: its model needs {least:,} bytes of weights, but it has only {size:,}.")


def check_unpacked(path: str | os.PathLike[str], config: Any) -> None:
    """Raises ValueError where a `.keras` or `.weights.h5` holds far more than a model and its optimizer have."""
    # The archive and HDF5's own filters may pack zeros to nothing, and HDF5 has arrays without a value in the file.
    import h5py

    path, most = pathlib.Path(path), _MOST_BESIDE + _MOST_BYTES * count_weights(config)
    with contextlib.ExitStack() as stack:
        source: Any = path
        size = 0
        if path.suffix == ".keras":
            archive = stack.enter_context(zipfile.ZipFile(path))
            member, source = archive.getinfo(_WEIGHTS), stack.enter_context(archive.open(_WEIGHTS))
            size = member.file_size
            if size <= most and member.compress_type != zipfile.ZIP_STORED:
                source = io.BytesIO(source.read())  # which can go back
        if size <= most:
            sizes: list[int] = []
            with h5py.File(source) as file:
                file.visititems(lambda _, item: sizes.append(item.nbytes if isinstance(item, h5py.Dataset) else 0))
            size = sum(sizes)
    if size > most:
        raise ValueError(f"{path} is damaged: its weights unpack to {size:,} bytes; at most {most:,} were expected.")


# A `.safetensors` or `.npz` with the config of its model


def _plan_of_described(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan by which a file with a config in its note is read."""
    for option in ("head", "grid_size", "like", "max_depth"):
        if getattr(sidecars, "backbone" if option == "head" else option) is not None:
            raise ValueError(f"The file contains the config of its model: leave {option}=... out.")
    with _readable("The file"):
        kind, fields = sidecars.note["model"], sidecars.note["config"]
        if not isinstance(kind, str) or kind not in _CONFIG_TYPES:
            raise ValueError(f"it is of a {kind!r}, but known are {', '.join(_CONFIG_TYPES)}")
        config = _CONFIG_TYPES[kind](**fields)
    check_size(sidecars.name, config, sum(array.bytes for array in file.values()))
    return Plan(layout=DESCRIBED, dialect="keras_vit", stored=config, arrays=dict(file))


@functools.lru_cache(2)  # a file's rows are asked for twice
def _described_rows(config: Any) -> list[Row]:
    """A row for each weight of the model, which is built without memory for them: its path names its array."""
    with layers.skip_initialization():
        weights = models.weights_by_path(getattr(models, config.model)(config))
    return [Row(path, path, tuple(weight.shape)) for path, weight in weights.items()]


def described(config: Any) -> dict[str, Any]:
    """The note of such a file: the name of the model's class, and its config."""
    return {"written_by": "keras_vit", "model": config.model, "config": config.to_dict()}


DESCRIBED = Layout("keras_vit", _described_rows, plan=_plan_of_described, config_type=object)
