"""Where the data that comes with the package lies."""

from pathlib import Path


def weights_folder() -> Path:
    """The folder of the data files that come with the package: class names, catalogue, the small checkpoint.

    An installed wheel holds it inside the package (`keras_vit/weights`), a source checkout beside it
    (`weights`).

    Returns:
        Path of an existing folder.

    Raises:
        FileNotFoundError: if neither folder exists.
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "weights", package.parent / "weights")
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"The data files of keras_vit are missing: neither {candidates[0]} nor {candidates[1]} is a folder. "
        "Reinstall the package, e.g. `pip install --force-reinstall --no-deps keras-vit`."
    )
