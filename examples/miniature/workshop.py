"""Models, recipes and runs that the experiments share. A model that two experiments need is pre-trained once."""

import dataclasses
import time
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit import training
from keras_vit._files import weights_folder
from keras_vit.evaluation import L2_SWEEP, few_shot
from keras_vit.models import BiT, BiTConfig, VisionTransformer, ViTConfig
from miniature.pictures import IMAGE_SIZE, Pictures, source_pictures, target_digits

ARCHITECTURES = ("ViT", "hybrid", "ResNet")
AS_IT_IS = training.Augmentation(crop="resize", flip=False)  # a mirrored 2 is not a digit


@dataclasses.dataclass(frozen=True)
class Settings:
    """How large everything is. `QUICK` shows that it runs and nothing else.

    Attributes:
        fonts: Which fonts the source is drawn with.
        classes: Of the source.
        pictures: Sizes of the source's training set.
        held_out: Pictures of the source to test on.
        steps: Of pre-training; a multiple of 16.
        batch_size: Of pre-training.
        looks: When pre-training is probed, in 16ths of its steps.
        width: Of the Transformers' tokens.
        depth: Their blocks.
        stages: Of the ResNet.
        shots: Of the few-shot probe.
        draws: How many draws of examples its accuracy is the mean of.
        seeds: How often each fine-tuning is repeated, with other images.
        tune_steps: Of fine-tuning.
        digits: Sizes of the target's training set.
        patience: How many times as long the other model from scratch is trained, with one seed.
        image_sizes: To fine-tune at, in pixels.
        test_digits: How many scans to test on.
    """

    fonts: str = "DejaVu*.ttf"
    classes: int = 49
    pictures: tuple[int, ...] = (400, 3_200, 25_600)
    held_out: int = 500
    steps: int = 400
    batch_size: int = 64
    looks: tuple[int, ...] = (1, 2, 4, 8, 16)
    width: int = 64
    depth: int = 4
    stages: tuple[int, ...] = (2, 2)
    shots: tuple[int, ...] = (1, 5, 25)
    draws: int = 8
    seeds: int = 2
    tune_steps: int = 60
    digits: tuple[int, ...] = (50, 200, 1_297)
    patience: int = 3
    image_sizes: tuple[int, ...] = (24, 32, 48)
    test_digits: int = 500


QUICK = Settings(
    fonts="DejaVuSans.ttf",
    classes=6,
    pictures=(12, 24),
    held_out=12,
    steps=16,
    batch_size=4,
    looks=(16,),
    width=8,
    depth=1,
    stages=(1,),
    shots=(1, 2),
    draws=2,
    seeds=1,
    tune_steps=2,
    digits=(10, 30),
    patience=2,
    image_sizes=(24, 32),
    test_digits=40,
)


@dataclasses.dataclass
class Pretrained:
    """A model, and what was seen on the way.

    Attributes:
        model: After the last step.
        probes: A row per look: `step`, `held_out` (accuracy on new pictures of the source), `few_shot` and `spread`
            (accuracy on the digits for each number of shots, from frozen features).
        weights: Of the model at each row.
        accuracy: At what it was trained for, on the last batches of training.
    """

    model: Any
    probes: list[dict[str, Any]]
    weights: list[list[np.ndarray]]
    accuracy: float = 0.0


class Workshop:
    """Data, and models that are made when somebody asks for them.

    Args:
        settings: How large everything is.
        seed: Decides all that is random.
        say: Takes a line about what has been done.
    """

    def __init__(self, settings: Settings, seed: int, say: Any) -> None:
        self.settings, self.seed, self.say = settings, seed, say
        self._made: dict[tuple[Any, ...], Pretrained] = {}
        self._source: tuple[Pictures, Pictures] | None = None
        self.digits, test = target_digits()
        self.test = test[: settings.test_digits]

    @property
    def source(self) -> tuple[Pictures, Pictures]:
        """Pictures to train on, and others to test on."""
        if self._source is None:
            s, begun = self.settings, time.perf_counter()
            self._source = source_pictures(max(s.pictures), s.held_out, s.classes, s.fonts, self.seed)
            self.say(f"{max(s.pictures):,} pictures of characters drawn in {time.perf_counter() - begun:.0f} s")
        return self._source

    def new_model(self, architecture: str, classes: int, seed: int) -> VisionTransformer | BiT:
        """One of `ARCHITECTURES` with random weights. They do a similar amount of work."""
        s = self.settings
        keras.utils.set_random_seed(seed)
        if architecture == "ResNet":
            return BiT(BiTConfig(image_size=IMAGE_SIZE, stages=s.stages, width=32, classes=classes))
        transformer: dict[str, Any] = {"image_size": IMAGE_SIZE, "width": s.width, "depth": s.depth, "heads": 4}
        transformer |= {"mlp_width": 2 * s.width, "classes": classes}
        if architecture == "hybrid":  # its ResNet shrinks 4 times as well: a token for each place of the map
            return VisionTransformer(ViTConfig(patch_size=1, stem_stages=(1,), stem_width=32, **transformer))
        return VisionTransformer(ViTConfig(patch_size=4, **transformer))

    def shipped_model(self, image_size: int = IMAGE_SIZE) -> VisionTransformer:
        """Returns the shipped checkpoint, pre-trained on 330,000 pictures of 164 classes of characters."""
        return keras_vit.from_checkpoint(weights_folder() / "glyphs.npz", image_size=image_size)

    def pretrain(self, architecture: str, pictures: int, objective: str = "labels") -> Pretrained:
        """Returns a model pre-trained on the first `pictures` of the source; probed on the way if it has labels."""
        key = (architecture, pictures, objective)
        if key not in self._made:
            begun = time.perf_counter()
            done = self._made[key] = self._pretrain(*key)
            about = (
                f"new pictures {done.probes[-1]['held_out']:.1%}" if done.probes else f"training {done.accuracy:.1%}"
            )
            what = f"{architecture} pre-trained on {pictures:,} pictures ({objective})"
            self.say(f"{what}: {about}, {time.perf_counter() - begun:.0f} s")
        return self._made[key]

    def _pretrain(self, architecture: str, pictures: int, objective: str) -> Pretrained:
        s = self.settings
        source, held_out = self.source
        done = Pretrained(self.new_model(architecture, s.classes, self.seed), [], [])
        pixels = done.model.preprocess(held_out.pixels)

        def look(step: int) -> None:
            right = done.model.predict(pixels, batch_size=100, verbose=0).argmax(-1) == held_out.labels
            done.probes.append({"step": step, "held_out": float(np.mean(right)), **self.few_shot(done.model)})
            done.weights.append(done.model.get_weights())

        every = s.steps // 16

        class Look(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if epoch + 1 in s.looks:
                    look((epoch + 1) * every)

        recipe = training.Recipe(
            name=f"miniature/{objective}",
            steps=s.steps,
            batch_size=s.batch_size,
            learning_rate=3e-3,
            schedule="linear",
            warmup_steps=0.1,
            optimizer="adamw",
            beta_2=0.99,  # of few steps the last thousand cannot be remembered
            weight_decay=0.05,
            clip_norm=1.0,
            augmentation=AS_IT_IS,
        )
        labelled = objective == "labels"
        if labelled:
            look(0)
        trained = training.pretrain(
            done.model,
            source[:pictures].pair(),
            recipe,
            objective=objective,
            classes=s.classes,
            every=every,
            seed=self.seed,
            callbacks=[Look()] if labelled else [],
            verbose=False,
        )
        done.accuracy = trained.log[-1]["accuracy"]
        return done

    def few_shot(self, model: Any) -> dict[str, dict[str, float]]:
        """Few-shot accuracy of frozen features on the digits, its L2 chosen on training images that were not drawn."""
        train = self.digits[:400]
        scores = few_shot(
            model,
            train.pair(),
            self.test.pair(),
            shots=self.settings.shots,
            l2=L2_SWEEP[::3],
            seeds=self.settings.draws,
            preprocess=True,
            batch_size=100,
            progress=False,
        )
        best = [row for row in scores.rows if row["best"]]
        return {
            "few_shot": {str(row["shots"]): row["accuracy"] for row in best},
            "spread": {str(row["shots"]): row["spread"] for row in best},
        }

    def finetune(self, model: Any, digits: int, seed: int, steps: int | None = None, image_size: int | None = None):
        """Test accuracy on the digits after fine-tuning on so many of them as the paper does. `model` may be used up.

        Returns:
            The accuracy, and the seconds.
        """
        begun = time.perf_counter()
        # Table 4 of the paper; a rate out of its sweep. No crops: characters fill their pictures.
        recipe = training.recipe("finetune/cifar10").replace(
            batch_size=32, learning_rate=0.03, warmup_steps=0.1, augmentation=AS_IT_IS
        )
        steps = steps or self.settings.tune_steps
        done = training.finetune(
            model,
            self.digits.balanced(digits, seed).pair(),
            recipe,
            validation=self.test.pair(),
            steps=steps,
            image_size=image_size or IMAGE_SIZE,
            classes=10,
            every=steps,
            seed=seed,
            verbose=False,
        )
        return done.accuracy, time.perf_counter() - begun
