"""Images that are alike, by the features in a file of `embed`: those like a photo, and near-duplicates."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import Source, printable, to_numpy
from keras_vit._page import html_tiles, small_image, thumbnail, write_page
from keras_vit._pictures import plot_map
from keras_vit._terminal import Table
from keras_vit.evaluation.embedding import model_fingerprint, read_embeddings
from keras_vit.evaluation.similarity import near_duplicates, search
from keras_vit.models import BiT, VisionTransformer, feature_extractor
from keras_vit.preprocessing import load_image
from keras_vit.zoo import as_model

PathLike = str | os.PathLike[str]
_CONTENT = ("settings", "origin", "names", "features")  # of a file of `embed`


def find_similar(
    image: Any,
    features: PathLike,
    *,
    query: Any = None,
    k: int = 12,
    model: VisionTransformer | BiT | Source | None = None,
    folder: PathLike | None = None,
) -> Table:
    """The images in a file of `embed` that a model takes for most alike to one, by cosine, best first.

    Args:
        image: What `model.preprocess` takes, such as a path; None where a `query` is given.
        features: The `.npz` file.
        query: Features of what is searched for, `(D,)`, such as `both.embed_texts("a red car")[0]` where the file has
            the embeddings of the image tower of `both` (see `keras_vit.load_image_text`).
        k: How many images; all where there are fewer.
        model: The model that the file was made with, or what `keras_vit.load` takes. None: the one
            in the file, where it was given as a name, an address or a path.
        folder: Where the images are. None: the folder that was embedded.

    Returns:
        Rows with `image` (a path) and `similarity`. Printing them draws a table.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no file of `embed`, or of another model, or does not say which, or a `query` has another
            length than the features.

    Examples:
        >>> features = evaluation.embed("glyphs", "photos/train", "train.npz", progress=False).path
        >>> evaluation.find_similar("photos/train/cat/1.jpg", features, k=1)[0]["image"]
        'photos/train/cat/1.jpg'
    """
    if (image is None) == (query is None):
        raise ValueError("Give either an image or, with image=None, a query.")
    file = read_embeddings(features, *_CONTENT)
    vectors, paths = _features_and_paths(file, folder)
    source = file["origin"]["model"] if model is None else model
    if source is not None and (model is not None or query is None):
        model = as_model(source)
        if model_fingerprint(model) != file["settings"]["model"]:
            raise ValueError(f"{printable(features)} has the features of another model than {printable(source)}.")
    if query is None:
        if model is None:
            raise ValueError(f"{printable(features)} does not say where its model is: give it as model.")
        found = feature_extractor(model, [file["settings"]["features"]])(model.preprocess(image))
        query = next(iter(found.values()))
    query = to_numpy(query).reshape(-1)
    if len(query) != vectors.shape[1]:
        wanted = f"{vectors.shape[1]} numbers, as the {file['settings']['features']!r} of {printable(features)}"
        raise ValueError(f"query must have {wanted}, but {len(query)} were given.")
    rows, similarities = search(vectors, query, min(k, len(vectors)))
    pairs = zip(rows, similarities.tolist(), strict=True)
    return Table({"image": paths[row], "similarity": round(similarity, 4)} for row, similarity in pairs)


def find_duplicates(features: PathLike, threshold: float = 0.95, *, folder: PathLike | None = None) -> Table:
    """Pairs of images in a file of `embed` that are almost the same, the most similar first.

    Args:
        features: As in `find_similar`.
        threshold: As in `near_duplicates`.
        folder: As in `find_similar`.

    Returns:
        Rows with `image`, `like` (paths) and `similarity`.

    Raises:
        FileNotFoundError, ValueError: as in `find_similar` and `near_duplicates`.

    Examples:
        >>> features = evaluation.embed("glyphs", "photos/train", "train.npz", progress=False).path
        >>> pairs = evaluation.find_duplicates(features, threshold=0.99)
    """
    vectors, paths = _features_and_paths(read_embeddings(features, *_CONTENT), folder)
    pairs, similarities = near_duplicates(vectors, threshold)
    return Table(
        {"image": paths[first], "like": paths[second], "similarity": round(similarity, 4)}
        for (first, second), similarity in zip(pairs, similarities.tolist(), strict=True)
    )


def draw_similar(rows: Table, path: PathLike, title: str = "Similar images", image: PathLike | None = None) -> None:
    """Draws what `find_similar` or `find_duplicates` has found as a contact sheet.

    Args:
        rows: What they returned; of many pairs the first 200.
        path: A `.html`, `.png`, `.svg` or `.pdf` to write.
        title: The headline.
        image: What was searched for, to stand first.

    Raises:
        ImportError: if Pillow or matplotlib is not installed.
        ValueError: if there are no rows, or the path has another ending.

    Examples:
        >>> rows = [{"image": "photos/train/cat/2.jpg", "similarity": 0.9}]
        >>> evaluation.draw_similar(rows, "similar.html", image="photos/train/cat/1.jpg")
    """
    if not rows:
        raise ValueError("There is nothing to draw: no images were found.")
    files: list[tuple[str, PathLike]] = [] if image is None else [("searched for", image)]
    for row in rows[:200]:
        files.append((f"{row['similarity']:.3f}  {Path(row['image']).name}", row["image"]))
        if "like" in row:
            files.append((f"and  {Path(row['like']).name}", row["like"]))
    # Images become small as they are read: 200 photos as they are would fill the memory.
    tiles = [(words, small_image(load_image(file))) for words, file in files]
    if Path(path).suffix.lower() in (".html", ".htm"):
        write_page(path, title, [html_tiles((thumbnail(one), words) for words, one in tiles)])
    else:
        plot_map(tiles, path, title=title, columns=6, side=2, gap=0.15)


def _features_and_paths(file: dict[str, Any], folder: PathLike | None) -> tuple[np.ndarray, list[str]]:
    """Features as rows, and the paths of their images."""
    home = file["origin"]["images"] if folder is None else folder
    paths = [os.fspath(Path(home or "", name)) for name in file["names"].tolist()]
    return file["features"].reshape(len(paths), -1), paths
