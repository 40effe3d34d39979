"""Draws the README's picture: six tasks with their results, measured where the truth is known.

    python docs/make_photographs.py WEIGHTS PHOTOGRAPHS

WEIGHTS is the folder that examples/trained_weights.py writes: a ViT-S/14 in DINOv2's layout, which nothing here trains.
PHOTOGRAPHS is the folder `skimage/data` of scikit-image 0.18 or later with `page.png` (of scikit-image, BSD-3-Clause),
`brick.png` (CC0), `chelsea.png` (by Stefan van der Walt, CC0) and `coffee.png` (by Rachel Michetti, CC0). The public
domain has `astronaut.png` (NASA). The other model is `glyphs`, which the package contains. Prints the figures that it
draws. Needs matplotlib, Pillow, SciPy and scikit-learn; takes some minutes.
"""

import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
from make_anomaly import SIDE, write_set  # beside this script
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

import keras_vit
from keras_vit import anomaly, data, inspection, training

FILE = Path(__file__).parent / "images" / "photographs.jpg"
HEADING = "Region-based segmentation"  # of page.png
TILE, GAP, WIDE = 240, 10, 490  # of a picture, between two, of a panel
SIZE = 644, 434  # of the model's pictures, width and height: 46 x 31 patches
TEAL, ORANGE = (0, 150, 140), (213, 94, 0)  # right, wrong
INK, MUTED = (25, 30, 40), (95, 105, 120)
FONT = Path(matplotlib.get_data_path()) / "fonts/ttf"


def write(
    draw: ImageDraw.ImageDraw, place: tuple[float, float], words: str, size: int, colour: tuple, bold: bool = False
):
    """Writes a line whose left end, in the middle of its height, is at a place."""
    font = ImageFont.truetype(str(FONT / f"DejaVuSans{'-Bold' * bold}.ttf"), size)
    draw.text(place, words, colour, font, anchor="lm")


def photograph(picture: Image.Image) -> Image.Image:
    """A picture, cut to the proportions of the model's pictures at its sides or at the bottom."""
    width, height = picture.size
    wide, high = min(width, height * SIZE[0] / SIZE[1]), min(height, width * SIZE[1] / SIZE[0])
    left = (width - wide) / 2
    return picture.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS, (left, 0, left + wide, high))


def read_heading(folder: Path) -> tuple[Image.Image, str]:
    """The letters of a photographed heading, cut out where columns have no ink; `glyphs` names each."""
    page = Image.open(folder / "page.png").convert("L").crop((0, 10, 300, 35))
    page = page.resize((1200, 100), Image.Resampling.BICUBIC)
    light = np.asarray(page, "float32")
    ink = (1.6 * (1 - light / ndimage.gaussian_filter(ndimage.grey_closing(light, (61, 61)), 20))).clip(0, 1)
    inked = np.pad((ink > 0.5).any(0), 1).astype(int)
    ends = zip(np.flatnonzero(np.diff(inked) > 0), np.flatnonzero(np.diff(inked) < 0), strict=True)
    boxes, crops = [], []
    for left, right in ends:
        rows = np.flatnonzero((ink[:, left:right] > 0.5).any(1))
        top, bottom = int(rows[0]), int(rows[-1]) + 1
        side = max(bottom - top, right - left) / 0.7
        if bottom - top < 30:  # a hyphen
            continue
        cut = Image.new("L", (round(side), round(side)))
        letter = Image.fromarray((255 * ink[top:bottom, left:right]).astype("uint8"))
        cut.paste(letter, tuple((round(side) - edge) // 2 for edge in letter.size))
        crops.append(np.repeat(np.asarray(cut)[..., None], 3, -1))
        boxes.append((int(left), top, int(right), bottom))
    model = keras_vit.load("glyphs")
    latin = [i for i, name in enumerate(model.config.class_names) if name[0].isascii() and name[0].isalpha()]
    names = [model.config.class_names[i] for i in latin]
    found = [names[i] for i in model.predict(model.preprocess(crops), verbose=0)[:, latin].argmax(-1)]
    truth = [letter for letter in HEADING if letter.isalpha()]
    right = [letter in name for letter, name in zip(truth, found, strict=True)]
    panel = Image.new("RGB", (WIDE, TILE), "white")
    draw = ImageDraw.Draw(panel)
    for row, (start, end) in enumerate(((0, 11), (11, len(boxes)))):
        left, end_x = boxes[start][0] - 12, boxes[end - 1][2] + 12
        scale = (WIDE - 10) / 600
        part = page.crop((left, 0, end_x, 100)).resize((round((end_x - left) * scale), round(100 * scale)))
        top = row * 122 + 38
        panel.paste(part.convert("RGB"), (0, top))
        for box, name, good in list(zip(boxes, found, right, strict=True))[start:end]:
            x = (box[0] - left) * scale, (box[2] - left) * scale
            draw.rectangle((x[0] - 1, top + box[1] * scale, x[1], top + box[3] * scale), outline=TEAL, width=2)
            write(
                draw,
                (sum(x) / 2 - 8, top - 18),
                name if len(name) == 1 else name[0].lower(),
                26,
                TEAL if good else ORANGE,
                True,
            )
    return panel, f"{sum(right)} of {len(right)} letters right"


def fine_tune() -> tuple[Image.Image, str]:
    """The README's block: `glyphs` learns handwritten digits; the first of those that it was not trained on."""
    train, test = data.load_digits()
    recipe = training.recipe("finetune/cifar10").replace(steps=60, batch_size=32, image_size=24)
    recipe = recipe.replace(augmentation=training.Augmentation(crop="resize", flip=False))
    with tempfile.TemporaryDirectory() as run:
        done = training.finetune("glyphs", {"train": train, "test": test}, recipe, every=60, output=run)
    pixels = test.pixels
    answers = done.model.predict(done.model.preprocess(list(pixels)), verbose=0).argmax(-1)
    panel = Image.new("RGB", (WIDE, TILE), "white")
    draw, step = ImageDraw.Draw(panel), 82
    for place in range(12):
        x, y = place % 6 * step, place // 6 * 120
        scan = Image.fromarray(pixels[place]).resize((76, 76), Image.Resampling.BICUBIC)
        panel.paste(scan, (x, y))
        good = answers[place] == test.labels[place]
        write(draw, (x + 28, y + 96), str(answers[place]), 32, TEAL if good else ORANGE, True)
    return panel, f"{(answers == test.labels).mean():.0%} of {len(answers)} new digits right"


def find_defects(weights: str, folder: Path) -> tuple[Image.Image, str]:
    """A scratch on a brick wall and the map of distances to 60 good pictures; figures are those of make_anomaly."""
    with tempfile.TemporaryDirectory() as place:
        write_set(np.asarray(Image.open(folder / "brick.png").convert("L"), "float64"), Path(place))
        model = anomaly.fit(weights, place, image_size=SIDE, verbose=False)
        path = sorted(Path(place).glob("test/scratch/*.png"))[1]
        picture, found = Image.open(path), anomaly.detect(model, path)
    share = (found.map / found.map.max())[..., None]
    colours = matplotlib.colormaps["inferno"](share[..., 0])[..., :3]
    wall = np.asarray(picture.convert("RGB"), "float32") / 255
    shown = (1 - share) * wall + share * colours
    return beside(picture, Image.fromarray((255 * shown).astype("uint8"))), "flags 24 of 30 damaged, 0 of 20 good"


def beside(*pictures: Image.Image) -> Image.Image:
    """Two pictures in one panel."""
    high = round(TILE / pictures[0].width * pictures[0].height)
    panel = Image.new("RGB", (WIDE, high), "white")
    for number, picture in enumerate(pictures):
        panel.paste(picture.resize((TILE, high), Image.Resampling.LANCZOS), (number * (TILE + GAP), 0))
    return panel


def features(model: keras_vit.VisionTransformer, picture: Image.Image) -> np.ndarray:
    """The colours of the patches of one picture, 0 in its background."""
    return inspection.feature_map(model, model.preprocess(picture))[0]


def cut_out(model: keras_vit.VisionTransformer, picture: Image.Image) -> Image.Image:
    """The largest connected part of a picture's foreground, on white."""
    parts, _ = ndimage.label(features(model, picture).any(-1))
    largest = parts == 1 + np.argmax(np.bincount(parts.ravel())[1:])
    filled = Image.fromarray(255 * ndimage.binary_fill_holes(largest).astype("uint8"))
    mask = np.asarray(filled.resize(picture.size, Image.Resampling.BICUBIC)) > 127
    soft = ndimage.gaussian_filter(mask.astype("float32"), 2)[..., None]
    return Image.fromarray((soft * np.asarray(picture, "float32") + (1 - soft) * 255).astype("uint8"))


def match(model: keras_vit.VisionTransformer, picture: Image.Image) -> tuple[Image.Image, str]:
    """Patches of a picture and of a turned and enlarged copy that are each other's nearest; where they are is known."""
    turn, middle, patch = np.deg2rad(8), np.array(SIZE) / 2, model.config.patch_size[0]
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) / 1.25  # from copy to picture
    shift = middle - matrix @ middle
    numbers = (*matrix[0], shift[0], *matrix[1], shift[1])
    copy = picture.transform(SIZE, Image.Transform.AFFINE, numbers, Image.Resampling.BICUBIC)
    extract = keras_vit.feature_extractor(model, ["block_7"], layout="map")
    maps = np.asarray(extract.predict(model.preprocess([picture, copy]), verbose=0)["block_7"])
    first, second = maps.reshape(2, -1, maps.shape[-1]) / np.linalg.norm(maps, axis=-1).reshape(2, -1, 1)
    alike = second @ first.T
    nearest, back = alike.argmax(1), alike.argmax(0)
    pairs = np.flatnonzero(back[nearest] == np.arange(len(nearest)))
    rows, columns = np.divmod(np.arange(len(nearest)), maps.shape[2])
    centres = (np.stack((columns, rows), 1) + 0.5) * patch
    found, true = centres[nearest[pairs]], centres[pairs] @ matrix.T + shift
    good = np.linalg.norm(found - true, axis=1) <= patch
    panel, scale = beside(picture, copy), TILE / SIZE[0]
    draw = ImageDraw.Draw(panel)
    for number in np.random.default_rng(0).choice(len(pairs), 9, replace=False):
        ends = [found[number] * scale, centres[pairs[number]] * scale + (TILE + GAP, 0)]
        colour = TEAL if good[number] else ORANGE
        draw.line([*map(tuple, ends)], fill=colour, width=3)
        for x, y in ends:
            draw.ellipse((x - 6, y - 6, x + 6, y + 6), fill=colour, outline="white")
    return panel, f"{good.mean():.0%} of {len(pairs)} within one patch"


def panels(weights: str, folder: Path) -> list[tuple[str, str, Image.Image, str]]:
    """A task, the weights and the function, the picture and the result of each panel."""
    model = keras_vit.load(weights, image_size=SIZE[::-1])
    finer = model.with_image_size((2 * SIZE[1], 2 * SIZE[0]))
    names = ("chelsea.png", "coffee.png", "astronaut.png")
    cat, coffee, astronaut = (photograph(Image.open(folder / name)) for name in names)
    colours = Image.fromarray((255 * features(finer, cat)).astype("uint8"))
    return [
        ("Classify", "glyphs, predict", *read_heading(folder)),
        ("Fine-tune", "glyphs, finetune", *fine_tune()),
        ("Find defects", "ViT-S/14, anomaly.detect", *find_defects(weights, folder)),
        ("See features", "ViT-S/14, feature_map", beside(cat, colours), "like parts have like colours"),
        (
            "Cut out",
            "ViT-S/14, feature_map",
            beside(coffee, cut_out(finer, coffee)),
            "by the features alone, untrained",
        ),
        ("Match views", "ViT-S/14, feature_extractor", *match(model, astronaut)),
    ]


def main(weights: str, photographs: str) -> None:
    """Writes docs/images/photographs.jpg: two rows of three panels."""
    made = panels(weights, Path(photographs))
    sheet = Image.new("RGB", (3 * WIDE + 2 * 25, sum(made[row][2].height for row in (0, 3)) + 2 * 142 + 20), "white")
    draw, y = ImageDraw.Draw(sheet), 0
    for number, (task, how, picture, result) in enumerate(made):
        x, y = number % 3 * (WIDE + 25), made[0][2].height + 162 if number > 2 else 0
        bottom = y + 56 + picture.height
        write(draw, (x, y + 26), task, 42, INK, bold=True)
        sheet.paste(picture, (x, y + 56))
        write(draw, (x, bottom + 24), result, 25, INK)
        write(draw, (x, bottom + 58), how, 24, MUTED)
        print(f"{task}: {how}: {result}")
    sheet.save(FILE, quality=82, optimize=True, progressive=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
