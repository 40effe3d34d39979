"""Pictures that the package ships, for examples that run anywhere."""

from keras_vit._arguments import check_choice
from keras_vit._files import weights_folder

__all__ = ["sample_image"]


def sample_image(name: str = "character.png") -> str:
    """The path of a picture that is installed with the package.

    Args:
        name: `"character.png"`, a printed R, or `"digit.png"`, a handwritten 5. The small model `glyphs` reads both.

    Returns:
        A path, which `model.preprocess`, `load_image` and the command line take.

    Raises:
        ValueError: if there is no such picture; the message names those that are there.

    Examples:
        >>> images = model.preprocess(keras_vit.sample_image("character.png"))
        >>> model.config.class_names[model.predict(images, verbose=0).argmax()]
        'R'
    """
    folder = weights_folder() / "samples"
    check_choice("name", name, tuple(sorted(path.name for path in folder.iterdir())))
    return str(folder / name)
