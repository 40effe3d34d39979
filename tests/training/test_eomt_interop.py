"""Whole runs beside EoMT's authors: their model, targets, augmentation, loss, optimizer and schedule, by Lightning.

They are skipped without their code and three more packages in the environment that CONTRIBUTING.md makes; wandb, which
their code imports, may be absent:

    git clone https://github.com/tue-mps/eomt ../eomt && git -C ../eomt checkout 7bd19dd
    .venv/interop/bin/python -m pip install lightning torchmetrics matplotlib
    PYTHONPATH=../eomt KERAS_BACKEND=torch .venv/interop/bin/python -m pytest tests/training/test_eomt_interop.py
"""

import sys
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, training

torch = pytest.importorskip("torch")
for package in ("lightning", "torchmetrics", "timm", "transformers", "torchvision", "matplotlib"):
    pytest.importorskip(package)
authors_model = pytest.importorskip("models.eomt")
pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore"),  # theirs
]

SIDE, STEPS, BATCH, QUERIES, POINTS, CLASSES = 32, 10, 2, 5, 64, {"panoptic": 133, "semantic": 150}
WARMUP = (2, 3)
STARTS, ENDS = [2, 5], [5, 8]  # of the updates in which masked attention fades
LEVELS = 1e-3  # of 255, the mean: where float32 of a changed colour lies between two of them
WAY = 1e-3  # of how far a weight has moved; seen: 1.4e-4


def scenes(task):
    """Pictures of noise and, for each of their regions, a number of COCO's PNG or a class of ADE20K's."""
    rng = np.random.default_rng(0)
    for number in range(STEPS * BATCH):
        shape = (40, 30) if number % 2 else (27, 45)
        parts = rng.integers(0, 4 if task == "semantic" else 6, (-(-shape[0] // 9), -(-shape[1] // 9)))
        regions = np.kron(parts, np.ones((9, 9), "int64"))[: shape[0], : shape[1]]
        values = np.array([0, 1, 17, 150]) if task == "semantic" else np.array([0, 5, 300, 70000, 9, 70001])
        picture = np.kron(rng.integers(0, 256, (*shape, 3)) // 2, 1) + (regions * 20)[..., None]
        yield picture.astype("uint8"), values[regions]


# COCO's categories of the segments above: two people, a book, a car; the last but one is a crowd, 0 is not a segment.
CATEGORIES = {5: 1, 300: 1, 70000: 84, 9: 3, 70001: 3}
CROWDS = {number: number == 9 for number in CATEGORIES}


class Authors:
    """Their run, and what it drew."""

    def __init__(self, task, monkeypatch, masks_fade):
        import timm
        from timm.models.vision_transformer import VisionTransformer

        self.task, self.monkeypatch, self.draws, self.augmentations, self.pairs = task, monkeypatch, [], [], []
        options = {"patch_size": 4, "embed_dim": 64, "depth": 3, "num_heads": 1, "num_classes": 0, "reg_tokens": 2}
        tiny = VisionTransformer(img_size=SIDE, init_values=0.3, no_embed_class=True, **options)
        monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: tiny)
        monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))  # which only draws their log
        from models.vit import ViT
        from training.mask_classification_panoptic import MaskClassificationPanoptic
        from training.mask_classification_semantic import MaskClassificationSemantic

        network = authors_model.EoMT(ViT((SIDE, SIDE)), CLASSES[task], QUERIES, num_blocks=2)
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(0.05 * torch.randn(weight.shape))
        kind = MaskClassificationPanoptic if task == "panoptic" else MaskClassificationSemantic
        stuff = {"stuff_classes": [*range(80, 133)]} if task == "panoptic" else {}
        self.module = kind(
            network,
            (SIDE, SIDE),
            CLASSES[task],
            attn_mask_annealing_enabled=masks_fade,
            attn_mask_annealing_start_steps=STARTS,
            attn_mask_annealing_end_steps=ENDS,
            num_points=POINTS,
            warmup_steps=WARMUP,
            lr=1e-3,
            **stuff,
        )
        self.losses = []

    def read(self, folder):
        """Their network as it is, as a model of this package. A file that it reads is of a run that has ended."""
        whole = {f"network.{name}": value for name, value in self.module.network.state_dict().items()}
        torch.save(whole | {"network.attn_mask_probs": torch.zeros(2)}, folder / "network.bin")
        return keras_vit.load(folder / "network.bin", image_size=SIDE)

    def parser(self):
        from datasets.ade20k_semantic import ADE20KSemantic
        from datasets.coco_panoptic import COCOPanoptic

        if self.task == "semantic":
            return lambda ids: ADE20KSemantic.target_parser(torch.from_numpy(ids)[None])

        def parse(ids):
            colours = torch.from_numpy(np.stack([ids % 256, ids // 256 % 256, ids // 65536]))
            return COCOPanoptic.target_parser(colours, CATEGORIES, CROWDS)

        return parse

    def augmented(self):
        """Their crops and targets; how each was made goes to `augmentations`."""
        from datasets import transforms
        from torchvision import tv_tensors

        whole = transforms.Transforms((SIDE, SIDE), self.task == "semantic", (0.5, 2.0))
        note = {}
        for name in ("brightness", "contrast", "saturation", "hue"):
            function = getattr(transforms.F, f"adjust_{name}")

            def adjust(image, factor, name=name, function=function):
                note["colour"].append((name, factor))
                return function(image, factor)

            self.monkeypatch.setattr(transforms.F, f"adjust_{name}", adjust)

        def noting(transform, method, take):
            function = getattr(transform, method)

            def noted(*arguments):
                result = function(*arguments)
                note.update(take(result))
                return result

            self.monkeypatch.setattr(transform, method, noted)

        noting(whole.random_horizontal_flip, "transform", lambda _: {"flip": True})
        noting(whole.scale_jitter, "make_params", lambda made: {"size": made["size"]})
        noting(whole.random_crop, "make_params", lambda made: {name: made.get(name, 0) for name in ("top", "left")})
        pass_on = whole.color_jitter

        def begin(image):  # also where all is drawn again
            note.clear()
            note.update(colour=[], flip=False)
            return pass_on(image)

        self.monkeypatch.setattr(whole, "color_jitter", begin)
        parse, samples = self.parser(), []
        for picture, ids in scenes(self.task):
            masks, labels, crowd = parse(ids)
            target = {"masks": tv_tensors.Mask(torch.stack(masks)), "labels": torch.tensor(labels)}
            image = tv_tensors.Image(torch.from_numpy(picture.transpose(2, 0, 1)))
            samples.append(whole(image, target | {"is_crowd": torch.tensor(crowd)}))
            self.augmentations.append(dict(note))
        return samples

    def run(self, samples):
        import lightning
        from datasets.lightning_data_module import LightningDataModule

        rand, matcher, step = torch.rand, self.module.criterion.matcher.forward, self.module.training_step

        def recorded(*size, **options):
            values = rand(*size, **options)
            self.draws[-1].append(values.numpy())
            return values

        def matched(*args, **options):
            indices = matcher(*args, **options)
            self.pairs[-1].append([(q.tolist(), t.tolist()) for q, t in indices])
            return indices

        def training_step(batch, batch_idx):
            self.draws.append([])
            self.pairs.append([])
            with self.monkeypatch.context() as patch:
                patch.setattr(torch, "rand", recorded)
                loss = step(batch, batch_idx)
            self.losses.append(float(loss))
            return loss

        self.monkeypatch.setattr(self.module.criterion.matcher, "forward", matched)
        self.monkeypatch.setattr(self.module, "training_step", training_step)
        loader = torch.utils.data.DataLoader(samples, BATCH, collate_fn=LightningDataModule.train_collate)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        quiet["enable_model_summary"] = False
        trainer = lightning.Trainer(
            max_steps=STEPS, accelerator="cpu", gradient_clip_val=0.01, gradient_clip_algorithm="norm", **quiet
        )
        trainer.fit(self.module, loader)

    def given(self, step, targets, probabilities):
        drawn, counts = iter(self.draws[step]), [len(target["labels"]) for target in targets]
        starts = np.concatenate([[0], np.cumsum(counts)])
        draws = np.zeros((len(probabilities), BATCH, QUERIES), "float32")
        for block, probability in enumerate(probabilities):
            if probability < 1:
                draws[block] = next(drawn)
        points = {"match": [], "candidates": [], "random": []}
        for pairs in self.pairs[step]:
            points["match"].append(np.concatenate([next(drawn) for _ in range(BATCH)]))
            places = [starts[i] + mask for i, (_, masks) in enumerate(pairs) for mask in masks]
            for name in ("candidates", "random"):
                values = next(drawn)
                points[name].append(np.zeros((starts[-1], *values.shape[1:]), "float32"))
                points[name][-1][places] = values
        assert next(drawn, None) is None
        return {name: np.stack(values) for name, values in points.items()}, draws


def own_targets(task, ids):
    if task == "semantic":
        return training.mask_targets(ids, reduce_zero_label=True)
    from datasets.coco_panoptic import CLASS_MAPPING

    segments = [{"id": i, "label": CLASS_MAPPING[k], "crowd": CROWDS[i]} for i, k in CATEGORIES.items()]
    return training.mask_targets(ids, segments=segments)


@pytest.mark.parametrize("task", ["panoptic", "semantic"])
def test_ten_updates(task, tmp_path, monkeypatch):
    torch.manual_seed(0)
    authors = Authors(task, monkeypatch, masks_fade=True)
    ours = authors.read(tmp_path)
    samples = authors.augmented()
    authors.run(samples)

    recipe = training.recipe("segmentation/eomt_coco_panoptic_base").replace(
        steps=STEPS, warmup_steps=WARMUP[0], backbone_warmup_steps=WARMUP[1], learning_rate=1e-3
    )
    optimizer = training.build_optimizer(recipe, ours)
    loss, losses, start = training.MaskClassificationLoss(CLASSES[task], POINTS), [], weights_of(ours)
    made = zip(scenes(task), authors.augmentations, strict=True)
    crops = [data.augment_masks(picture, own_targets(task, ids), SIDE, **how) for (picture, ids), how in made]
    for (picture, target), (image, wanted) in zip(crops, samples, strict=True):
        levels = np.abs(picture.astype(int) - image.permute(1, 2, 0).numpy())
        assert levels.max() <= (task == "semantic") and levels.mean() <= LEVELS  # colours change there
        np.testing.assert_array_equal(target["labels"], wanted["labels"])
        np.testing.assert_array_equal(target["masks"], wanted["masks"])
    for k in range(STEPS):
        rows = slice(BATCH * k, BATCH * (k + 1))
        targets = [target for _, target in crops[rows]]
        probabilities = training.mask_probabilities(k, STARTS, ENDS)
        points, draws = authors.given(k, targets, probabilities)
        # Theirs: a pixel that is a level brighter may let a query see one patch more.
        images = np.stack([image.permute(1, 2, 0).numpy() for image, _ in samples[rows]]).astype("float32")
        images = ours.config.pipeline.normalized(images)
        step = training.segmentation_step(ours, optimizer, loss, images, targets, points, probabilities, draws)
        losses.append(step["loss"])

    np.testing.assert_allclose(losses, authors.losses, rtol=1e-5)
    theirs, found = weights_of(authors.read(tmp_path)), weights_of(ours)
    assert theirs.keys() == found.keys()
    for name, wanted in theirs.items():
        # The softmax does not see a bias of keys: its gradient is 0, and it moves by what that is rounded to.
        moved = name.replace("/key/bias", "/query/bias")
        way, off = np.abs(theirs[moved] - start[moved]).max(), np.abs(found[name] - wanted).max()
        assert off <= WAY * way, (name, off / way)


def weights_of(model):
    return {name: keras.ops.convert_to_numpy(w) for name, w in keras_vit.models.weights_by_path(model).items()}
