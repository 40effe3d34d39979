"""Draws the pictures of docs/inspection.md: what the checkpoint that comes along sees in real handwriting.

    python docs/make_inspection.py

Needs matplotlib, Pillow and scikit-learn, whose digits are the images. Takes half a minute.
"""

import pathlib

import numpy as np

import keras_vit
from keras_vit import inspection
from keras_vit.data import load_digits

FOLDER = pathlib.Path(__file__).parent / "images"
IMAGES = 128  # as many as the paper takes for the mean attention distance


def main() -> None:
    """Writes docs/images/inspection_*.png, and prints the figures that the text names."""
    model = keras_vit.load("glyphs")
    _, test = load_digits()
    chosen = [int(np.flatnonzero(test.labels == digit)[0]) for digit in range(8)]
    images = model.preprocess(test.pixels[chosen])
    pixels = inspection.shown_pixels(model, images)

    def path(name: str) -> pathlib.Path:
        return FOLDER / f"inspection_{name}.png"

    many = model.preprocess(test.pixels[:IMAGES])
    distances = inspection.mean_attention_distance(model, many)
    inspection.plot("distance", distances, path=path("distance"))
    inspection.plot("filters", inspection.patch_filters(model), path=path("filters"))
    similarity = inspection.position_similarity(model)
    inspection.plot("positions", similarity, path=path("positions"))
    heads = inspection.patch_attention(model, images[3:4])[0]
    inspection.plot("heads", heads, pixels[3], path("heads"), "Where each head looks, last block")
    inspection.plot("rollout", inspection.attention_rollout(model, images), pixels, path("rollout"))
    relevance = inspection.gradient_attention(model, images)
    inspection.plot("relevance", relevance, pixels, path("relevance"), "What speaks for the class that it says")
    inspection.plot("saliency", inspection.saliency(model, images), pixels, path("saliency"))
    evidence = inspection.class_evidence(model, images)
    said = inspection.class_scores(model, images).argmax(1)
    names = [f"says {model.config.class_names[i]}" for i in said]
    inspection.plot("evidence", evidence, pixels, path("evidence"), class_names=names)
    more = inspection.shown_pixels(model, many)
    places, cosines = inspection.nearest_patches(model, many, (3, 2, 3), 13)
    near = {"cosines": cosines, "patch": (3, 2, 3), "grid_size": model.config.grid_size}
    inspection.plot("nearest", places, more, path("nearest"), **near)
    inspection.plot("features", inspection.feature_map(model, images), pixels, path("features"))

    rows, columns = model.config.grid_size
    print("pixels, least and most far head of each block:")
    for block, values in enumerate(distances):
        print(f"  block {block}: {values.min():.1f} to {values.max():.1f}, mean {values.mean():.1f}")
    next_to = np.mean([similarity[r, c, r, c + 1] for r in range(rows) for c in range(columns - 1)])
    far = np.mean([similarity[0, 0, -1, -1], similarity[0, -1, -1, 0]])
    print(f"cosine of neighbours in a row {next_to:.2f}, of opposite corners {far:.2f}")


if __name__ == "__main__":
    main()
