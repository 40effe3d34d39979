"""Trains `glyphs.npz`, the small checkpoint that comes with keras_vit: a miniature of the paper's pre-training.

The source is synthetic and endless: characters of the DejaVu fonts (they come with matplotlib), each drawn once as a
signed distance field and from then on bent, sheared, thickened, thinned, blurred, tinted and covered with noise. No
picture is seen twice. The model learns to name the characters; `examples/demo.py` carries what it has learned
over to handwritten digits.

    KERAS_BACKEND=torch python weights/train_glyphs.py                       # trains, and replaces glyphs.npz
    KERAS_BACKEND=torch python weights/train_glyphs.py --steps 50 --output /tmp/try      # a thin run of everything

Needs `pip install "keras-vit-zoo[demo]"`: matplotlib for its fonts, Pillow to draw them, SciPy for the distances.
"""

import argparse
import time
from pathlib import Path

import keras
import numpy as np

import keras_vit
from keras_vit.interpolation import interpolation_matrix
from keras_vit.models import VisionTransformer, ViTConfig

# One class per entry. Characters that differ in nothing but size (c and C, l and I, o and 0) share a class.
CLASSES = (
    *("Oo0", *"123456789", "Cc", "Iil|", "Kk", "Pp", "Ss", "Uu", "Vv", "Ww", "Xx", "Zz"),
    *"ABDEFGHJLMNQRTYabdefghjmnqrty",
    *("Θθ", "Φφ", *"ΓΔΛΞΠΣΨΩαβγδεζηλμξπσςτχψω"),
    *"БДЖИЙЦЧШЩЪЫЬЭЮЯб",
    *"აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ",
    *"+=÷±<>≤≥≈≠∞∫∂√#$%&@?!/\\*^~§¶£¥€[]{}←↑→↓",
)
CONFIG = ViTConfig(
    image_size=24,
    patch_size=4,
    width=96,
    depth=6,
    heads=4,
    mlp_width=288,
    classes=len(CLASSES),
    class_names=CLASSES,
)
FIELD = 64  # pixels of a distance field, height and width
GLYPH = 40  # of which the longer side of a character fills this many


def distance_fields(fonts: str = "DejaVu*.ttf") -> tuple[np.ndarray, np.ndarray]:
    """Every character of `CLASSES` in every font that has it, as a signed distance field.

    Args:
        fonts: Which of the fonts that come with matplotlib: a pattern for file names.

    Returns:
        float16 `(characters, FIELD, FIELD)`: the distance to the outline in pixels, positive inside; and int32
        `(characters,)`, the classes.
    """
    import matplotlib
    from matplotlib.ft2font import FT2Font
    from PIL import Image, ImageDraw, ImageFont
    from scipy.ndimage import distance_transform_edt

    zoom = 4  # drawn this much larger, so that distances are good to a quarter of a pixel
    fields, labels = [], []
    for path in sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob(fonts)):
        known = FT2Font(str(path)).get_charmap()
        font = ImageFont.truetype(str(path), 256)
        for label, characters in enumerate(CLASSES):
            for character in characters:
                if ord(character) not in known:
                    continue  # the two "Display" fonts hold a handful of symbols only
                left, top, right, bottom = font.getbbox(character)
                scale = GLYPH * zoom / max(right - left, bottom - top)
                drawn = Image.new("L", (right - left + 8, bottom - top + 8))
                ImageDraw.Draw(drawn).text((4 - left, 4 - top), character, fill=255, font=font)
                drawn = drawn.resize([max(1, round(side * scale)) for side in drawn.size], Image.Resampling.BOX)
                canvas = Image.new("L", (FIELD * zoom, FIELD * zoom))
                canvas.paste(drawn, [(FIELD * zoom - side) // 2 for side in drawn.size])
                inside = np.asarray(canvas) > 127
                distance = distance_transform_edt(inside) - distance_transform_edt(~inside)
                distance = distance.reshape(FIELD, zoom, FIELD, zoom).mean((1, 3)) / zoom
                fields.append(distance.astype("float16"))
                labels.append(label)
    return np.stack(fields), np.asarray(labels, "int32")


def draw(fields: np.ndarray, rng: np.random.Generator, size: int = CONFIG.image_size[0]) -> np.ndarray:
    """Draws one picture of each distance field, differently every time.

    Args:
        fields: `(batch, FIELD, FIELD)` from `distance_fields`.
        rng: Decides everything that is random.
        size: Height and width of the pictures in pixels; a multiple of 24.

    Returns:
        float32 `(batch, size, size, 3)` with values in [-1, 1].
    """
    count = len(fields)

    def uniform(low: float, high: float, *shape: int) -> np.ndarray:
        return rng.uniform(low, high, (count, *(shape or (1, 1)))).astype("float32")

    # Where every pixel looks: rotation, slant, aspect ratio, zoom, shift, and a smooth random bend.
    centres = (np.arange(size, dtype="float32") + 0.5) / size * 2 - 1
    y, x = np.broadcast_arrays(centres[:, None], centres[None, :])
    angle, slant, aspect = uniform(-0.3, 0.3), uniform(-0.4, 0.4), np.exp(uniform(-0.4, 0.25))
    zoom = uniform(0.6, 0.9)  # at 0.625 a character fills the picture
    bend = interpolation_matrix(4, size, "bicubic").astype("float32")
    bends = bend @ rng.normal(0, 1, (2, count, 4, 4)).astype("float32") @ bend.T * (0.1 * uniform(0, 1))
    x = x * zoom + uniform(-0.08, 0.08) + bends[0]
    y = y * zoom + uniform(-0.08, 0.08) + bends[1]
    x, y = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
    x = (x + slant * y) / aspect
    distance = _look_up(fields, (y + 1) * (FIELD / 2) - 0.5, (x + 1) * (FIELD / 2) - 0.5)

    # Ink: from thin to fat, from sharp to blurred, some of it seen through very few pixels.
    ink = np.clip((distance + uniform(-1.2, 1.5)) / uniform(1.5, 5.0) + 0.5, 0, 1)
    coarse = rng.random(count) < 0.4
    ink[coarse] = _coarsen(ink[coarse], 8 if rng.random() < 0.4 else 12)

    # Paper and colours: half of the pictures are grey, a quarter dark on light.
    tint = rng.random((count, 1, 1, 1)) < 0.5
    paper, pen = (
        np.where(tint, uniform(low, high, 1, 1, 3), uniform(low, high, 1, 1, 1)) for low, high in ((0, 0.3), (0.6, 1))
    )
    ramp = bend @ rng.normal(0, 0.05, (count, 4, 4)).astype("float32") @ bend.T
    image = paper + (pen - paper) * ink[..., None] + ramp[..., None] * (rng.random((count, 1, 1, 1)) < 0.3)
    image = np.where(rng.random((count, 1, 1, 1)) < 0.25, 1 - image, image)
    image = image + rng.normal(0, 1, image.shape[:3] + (1,)) * uniform(0, 0.06, 1, 1, 1)
    return (np.clip(image, 0, 1) * 2 - 1).astype("float32")


def _look_up(fields: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Bilinear look-up in `(batch, FIELD, FIELD)` at places `(batch, size, size)`, the edge going on outside."""
    y, x = np.clip(y, 0, FIELD - 1.001), np.clip(x, 0, FIELD - 1.001)
    top, left = y.astype("int32"), x.astype("int32")
    down, right = y - top, x - left
    corner = (np.arange(len(fields))[:, None, None] * FIELD + top) * FIELD + left
    flat = fields.reshape(-1)
    above = flat[corner] * (1 - right) + flat[corner + 1] * right
    below = flat[corner + FIELD] * (1 - right) + flat[corner + FIELD + 1] * right
    return above * (1 - down) + below * down


def _coarsen(ink: np.ndarray, pixels: int) -> np.ndarray:
    """`(batch, size, size)` averaged to `pixels` per side and scaled up again, as a small scan would be."""
    size = ink.shape[-1]
    up = interpolation_matrix(pixels, size, "bilinear").astype("float32")
    return up @ ink.reshape(-1, pixels, size // pixels, pixels, size // pixels).mean((2, 4)) @ up.T


class Glyphs(keras.utils.PyDataset):
    """An endless stream of pictures: batch `i` of epoch `e` depends on the seed, `e` and `i` alone.

    Args:
        fields: From `distance_fields`.
        labels: From `distance_fields`.
        steps: Batches per epoch.
        batch_size: Pictures per batch.
        seed: Another seed, other pictures.
    """

    def __init__(self, fields: np.ndarray, labels: np.ndarray, steps: int, batch_size: int, seed: int) -> None:
        super().__init__()
        self.fields, self.labels, self.steps, self.batch_size, self.seed = fields, labels, steps, batch_size, seed
        self.epoch = 0
        self._members = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]

    @property
    def num_batches(self) -> int:
        """Batches per epoch."""
        return self.steps

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self.seed, self.epoch, index])
        # Classes are equally frequent, however many characters share one.
        classes = rng.integers(len(self._members), size=self.batch_size)
        chosen = np.asarray([rng.choice(self._members[label]) for label in classes])
        return draw(self.fields[chosen], rng), self.labels[chosen]

    def on_epoch_end(self) -> None:
        """Turns to new pictures."""
        self.epoch += 1


def train(steps: int, batch_size: int, learning_rate: float, seed: int) -> tuple[VisionTransformer, dict[str, float]]:
    """Pre-trains the model with AdamW, warm-up and cosine decay.

    Returns:
        The model, and its loss and accuracy on 8,192 pictures that it has not seen.
    """
    keras.utils.set_random_seed(seed)
    fields, labels = distance_fields()
    print(f"{len(fields)} characters of {len(CLASSES)} classes; {steps} steps of {batch_size} pictures")
    model = VisionTransformer(CONFIG, name="glyphs")
    warm_up = min(200, steps // 10)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - warm_up, warmup_target=learning_rate, warmup_steps=warm_up
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.05, beta_2=0.99, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "token", "table"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    epochs = max(1, round(steps / 100))
    model.fit(Glyphs(fields, labels, steps // epochs, batch_size, seed), epochs=epochs, verbose=2)
    return model, model.evaluate(Glyphs(fields, labels, 32, 256, seed + 1), verbose=0, return_dict=True)


def main() -> None:
    """Trains and writes `glyphs.npz` and `glyphs_classes.txt`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder for the two files")
    parser.add_argument("--steps", type=int, default=2600, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    arguments = parser.parse_args()
    started = time.perf_counter()
    model, scores = train(arguments.steps, arguments.batch_size, arguments.learning_rate, arguments.seed)
    print(f"accuracy on new pictures: {scores['accuracy']:.2%} (loss {scores['loss']:.3f})")
    arguments.output.mkdir(parents=True, exist_ok=True)
    keras_vit.to_checkpoint(model, arguments.output / "glyphs.npz", layout="vit_jax", overwrite=True)
    (arguments.output / "glyphs_classes.txt").write_text("".join(f"{names}\n" for names in CLASSES), encoding="utf-8")
    print(f"{arguments.output / 'glyphs.npz'} written after {(time.perf_counter() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
