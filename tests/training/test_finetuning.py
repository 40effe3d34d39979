"""`finetune` and `pretrain` from data to files: what they train, write, refuse, and how they go on after a kill."""

import json
import shutil
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
from keras.callbacks import EarlyStopping, LearningRateScheduler, ModelCheckpoint

import keras_vit
from keras_vit import VisionTransformer, ViTConfig, cli, training
from keras_vit.data import BoxAugmentation, MaskAugmentation
from keras_vit.layers.fast.torch import takes_onednn
from tests.data.sources import Sequence
from tests.pictures import save
from tests.processes import REPOSITORY, environment
from tests.training.test_loop import assert_same_weights, cut_off, weights_of

pytestmark = [pytest.mark.once, pytest.mark.long]

CONFIG = ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=12, classes=3, dropout=0.1)
RECIPE = training.recipe("finetune/cifar10").replace(
    batch_size=8, learning_rate=0.1, image_size=8, dropout=0.1, augmentation=training.Augmentation(min_area=0.5)
)


def colours(count, seed=0):
    """Images of three colours and noise: easy, but not given away."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    pixels = rng.integers(0, 60, (count, 8, 8, 3))
    pixels[np.arange(count), :, :, labels] += 150
    return pixels.astype("uint8"), labels


IMAGES = colours(8)


def new_model(**changes):
    keras.utils.set_random_seed(2)
    return VisionTransformer(CONFIG.replace(**changes))


def finetune(model, data=IMAGES, recipe=RECIPE, steps=1, **options):
    return training.finetune(model, data, recipe, steps=steps, verbose=False, **options)


def head_of(model):
    return model.get_layer("head").get_weights()[0]


def trained_names(model):
    return {weight.path for weight in model.trainable_weights}


def write_folder(root, count=24):
    for split, seed in (("train", 0), ("test", 1)):
        for number, (pixels, label) in enumerate(zip(*colours(count, seed), strict=True)):
            save(root / split / ("red", "green", "blue")[label] / f"{number}.png", pixels)
    return root


def long_run(folder, output, callbacks=()):
    source, data = str(folder / "source.npz"), folder / "data"
    return finetune(source, data, steps=30, every=10, output=folder / output, callbacks=callbacks)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a folder of images, from a file of the official layout, with everything that it leaves."""
    folder = tmp_path_factory.mktemp("finetune")
    write_folder(folder / "data")
    source = new_model(classes=5)
    source.get_layer("head").kernel.assign(np.ones((8, 5)))
    keras_vit.to_checkpoint(source, folder / "source.npz")
    return long_run(folder, "run"), folder


@pytest.mark.each
def test_it_learns_and_what_it_leaves(trained):
    done, folder = trained
    run = folder / "run"
    assert [row["step"] for row in done.log] == [10, 20, 30]
    assert done.accuracy == done.log[-1]["val_accuracy"] > 0.9
    assert done.log[0]["loss"] > done.log[-1]["loss"]
    assert done.class_names == ["blue", "green", "red"] and done.recipe.steps == 30
    assert done.log[-1]["learning_rate"] < done.log[0]["learning_rate"] <= 0.1
    assert {path.name for path in run.iterdir()} >= {"run.json", "log.csv", "classes.txt", "model.keras"}
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in run.glob("step-*")] == ["step-00000030.npz"]
    assert (run / "classes.txt").read_text().split() == done.class_names
    model = keras.saving.load_model(run / "model.keras")
    assert not model.compiled
    assert model.config == CONFIG.replace(class_names=("blue", "green", "red"))
    # the same weights, another compilation
    got, wanted = (m.predict(m.preprocess(IMAGES[0]), verbose=0) for m in (model, done.model))
    np.testing.assert_allclose(got, wanted, atol=1e-5)


SCRIPT = """
    import os, signal, sys
    from pathlib import Path
    from tests.training.test_finetuning import long_run
    from tests.training.test_loop import Stop

    long_run(Path(sys.argv[1]), "killed", [Stop(16, lambda model: os.kill(os.getpid(), signal.SIGKILL))])
"""


@pytest.mark.nightly_elsewhere
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_run_ends_with_the_same_weights(trained, backend):
    """A kill takes a process, and what it leaves in the folder is the same on all backends as after an error."""
    done, folder = trained
    if backend == "torch":
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder)]
        killed = subprocess.run(command, env=environment(), cwd=REPOSITORY, capture_output=True, text=True)
        assert killed.returncode == -9, killed.stderr
    else:
        cut_off(long_run, 16, folder=folder, output="killed")
    assert [path.name for path in (folder / "killed").glob("step-*")] == ["step-00000010.npz"]
    resumed = long_run(folder, "killed")
    assert [row["loss"] for row in resumed.log] == [row["loss"] for row in done.log]
    assert_same_weights(resumed.model, done.model)


def test_a_second_half_with_other_arithmetic_says_so(tmp_path, monkeypatch):
    options, taken = {"steps": 2, "every": 1, "output": tmp_path / "half"}, takes_onednn()
    cut_off(finetune, 2, model=new_model(), **options)
    monkeypatch.setattr("keras_vit.models.changes.takes_onednn", lambda: not taken)
    words = f"arithmetic.KERAS_VIT_ONEDNN was {taken:d} and is now {not taken:d}. The environment variable"
    with pytest.warns(UserWarning, match=words):
        finetune(new_model(), **options)


def test_a_finished_run_is_not_run_again(trained):
    done, folder = trained
    again = long_run(folder, "run")
    assert list(again.log) == list(done.log)
    assert_same_weights(again.model, done.model)
    with pytest.raises(ValueError, match="other settings: recipe.steps was 30 and is now 31. Choose"):
        finetune(str(folder / "source.npz"), folder / "data", steps=31, every=10, output=folder / "run")


@pytest.mark.filterwarnings("ignore:Tensor.T is deprecated on 0-D tensors:UserWarning")  # Keras's RandAugment on torch
def test_the_command_line_trains_and_predicts(trained, capsys, tmp_path):
    folder = trained[1]
    arguments = f"finetune {folder}/source.npz {folder}/data --steps 1 --batch-size 8 --image-size 8 --json --no-flip"
    arguments += f" --output {tmp_path}/run --crop resize --mixup 0.2 --randaugment 2 10 --keep best --patience 3"
    arguments += f" --teacher {folder}/run/model.keras --distill soft"
    assert cli.main(arguments.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["class_names"] == ["blue", "green", "red"] and found["log"][-1]["step"] == 1
    recipe = training.Recipe.from_dict(found["recipe"])
    assert (recipe.keep, recipe.patience, found["log"][-1]["kept"]) == ("best", 3, True)
    assert recipe.augmentation == training.Augmentation(crop="resize", flip=False, mixup=0.2, randaugment=(2, 10))
    picture = next((folder / "data/test/red").iterdir())
    assert cli.main(["predict", str(picture), "--weights", str(folder / "run/model.keras"), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["classes"][0]["name"] == "red"
    assert sum(entry["probability"] for entry in answer["classes"]) == pytest.approx(1, abs=1e-5)


def test_an_image_size_that_nobody_asked_for(trained):
    """384 pixels in patches of 4 are 9,216 tokens: hours and gigabytes instead of a minute."""
    with pytest.raises(UserWarning, match=r"384.*96 x 96 patches.*image_size="):  # an error before anything is trained
        finetune(str(trained[1] / "source.npz"), recipe="finetune/cifar10", batch_size=2)


@pytest.mark.parametrize("lora_rank", [None, 2], ids=["whole", "adapters"])
def test_the_seed_alone_decides_the_masks_of_dropout(lora_rank):
    """The states of its random generators would depend on how many models the program has made."""
    config = {"dropout": 0.5, "attention_dropout": 0.5, "drop_path": 0.5, "depth": 2}
    recipe = RECIPE.replace(lora_rank=lora_rank, dropout=0, learning_rate=0.5, warmup_steps=0)
    found = []
    for models, seed in ((0, 0), (3, 0), (0, 1)):
        for _ in range(models):
            new_model(**config)
        model = new_model(**config)
        found.append(weights_of(finetune(model, colours(20), recipe, steps=3, seed=seed).model))
    first, second, other = found
    np.testing.assert_equal(second, first)
    assert any(np.any(a != b) for a, b in zip(other, first, strict=True))


@pytest.mark.nightly_elsewhere
def test_a_model_with_softmax_is_trained_on_its_logits():
    model = new_model(classifier_activation="softmax", include_preprocessing=True)
    before = weights_of(model)
    done = finetune(model, colours(20), RECIPE.replace(freeze=("embedding",)), steps=3)
    assert done.output is None and done.accuracy is None
    pairs = zip(model.weights, weights_of(done.model), before, strict=True)
    changed = {weight.path for weight, now, then in pairs if np.any(now != then)}
    assert not any(path.startswith("embedding") for path in changed)
    assert {"head/kernel", "block_0/attention/query/kernel"} <= changed


def test_a_regression_begins_with_the_mean_of_the_labels_in_every_head_of_zeros():
    data = (IMAGES[0], IMAGES[1] + 3.0)
    for classes in (1, 3):
        model = finetune(new_model(classes=classes), data, target="number", learning_rate=0.0).model
        np.testing.assert_array_equal(model.get_layer("head").get_weights()[1], data[1].mean(dtype="float32"))


@pytest.mark.nightly_elsewhere
def test_pretraining_without_labels_trains_the_encoder():
    model = new_model()
    before = weights_of(model)
    options = {"objective": "masked_patches", "validation": colours(8, 1), "steps": 12, "every": 4, "verbose": False}
    done = training.pretrain(model, colours(24), RECIPE.replace(optimizer="adamw", learning_rate=0.01), **options)
    assert done.log[-1]["val_loss"] < done.log[0]["val_loss"] < 6.3  # log(512) is 6.2
    for weight, now, then in zip(model.weights, weights_of(done.model), before, strict=True):
        assert np.any(now != then) != weight.path.startswith("head"), weight.path


def frozen(**changes):
    model = new_model(**changes)
    model.trainable = False
    return model


FOUR = (IMAGES[0], np.array([3, *IMAGES[1][1:]]))
WRONG = {
    "There is no recipe 'finetune/cifar'": lambda: finetune(new_model(), recipe="finetune/cifar"),
    "validation must be data or a share.*1.5": lambda: finetune(new_model(), validation=1.5),
    "validation must be data or a share.*True": lambda: finetune(new_model(), validation=True),
    "output must be a folder that can be": lambda: finetune(new_model(), output="/proc/x/y"),
    "warmup_steps must.*below steps=2": lambda: finetune(new_model(), steps=2, warmup_steps=2),
    "model must be a model of keras_vit": lambda: finetune(keras.Sequential()),
    "dtype is for models that are loaded": lambda: finetune(new_model(), dtype="mixed_bfloat16"),
    "nothing would be learned": lambda: finetune(frozen()),
    "also the new head": lambda: finetune(frozen(classes=5)),
    "patience needs images to evaluate on": lambda: finetune(new_model(), recipe=RECIPE.replace(patience=2)),
    "objective must be one": lambda: training.pretrain(new_model(), IMAGES, RECIPE, objective="rotation"),
    r"3 outputs.*data has 4 classes.*with_classes\(4\)": lambda: training.pretrain(new_model(), FOUR, RECIPE),
    "3 channels, but .* has 1": lambda: training.pretrain(
        new_model(channels=1), (IMAGES[0][..., :1], IMAGES[1]), RECIPE, objective="masked_patches"
    ),
    "A run has no argument stepz=.*. Did you mean 'steps'": lambda: finetune(new_model(), stepz=2),
    "name must be a string, but dict was given": lambda: training.finetune_segmentation(
        new_model(), IMAGES, {"steps": 1}
    ),
    "must be a list of Keras callbacks": lambda: finetune(new_model(), callbacks=EarlyStopping()),
    "the recipe sets the learning rate": lambda: finetune(new_model(), callbacks=[LearningRateScheduler(len)]),
    "ModelCheckpoint, which would store": lambda: finetune(
        new_model(), polyak=0.9, callbacks=[ModelCheckpoint("model.keras")]
    ),
    "EarlyStopping, which would": lambda: finetune(
        new_model(), polyak=0.9, callbacks=[EarlyStopping(restore_best_weights=True)]
    ),
}


def test_what_makes_no_sense_is_refused():
    for message, call in WRONG.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_what_is_frozen_stays_frozen_and_the_name_too():
    model = VisionTransformer(CONFIG.replace(classes=5, image_size=16), name="mine")
    training.freeze(model, ["embedding", "block_0"])
    done = finetune(model, image_size=8)
    assert done.model is not model and done.model.name == "mine" and done.model.config.classes == 3
    assert trained_names(done.model) == trained_names(model)
    assert "head/kernel" in trained_names(model) and "block_0/attention/query/kernel" not in trained_names(model)


def test_a_saved_model_is_treated_like_the_model_itself(tmp_path):
    model = new_model(dropout=0.0)
    model.get_layer("head").kernel.assign(np.ones((8, 3)))
    model.save(tmp_path / "model.keras")
    recipe = RECIPE.replace(dropout=0.2, drop_path=0.1, learning_rate=0.0)
    for source, dtype in ((model, None), (tmp_path / "model.keras", "mixed_bfloat16")):
        done = finetune(source, recipe=recipe, dtype=dtype)
        config = done.model.config
        assert (config.dropout, config.drop_path, config.image_size) == (0.2, 0.1, (8, 8))
        assert done.model.dtype_policy.name == (dtype or "float32")
        np.testing.assert_array_equal(head_of(done.model), np.ones((8, 3)))
        assert (model.config.dropout, model.config.drop_path) == (0, 0)


def test_names_of_other_classes_need_another_head():
    """As many classes are not the same classes."""
    model = new_model(class_names=("cat", "dog", "eel"))
    model.get_layer("head").kernel.assign(np.ones((8, 3)))
    same = finetune(model, class_names=["cat", "dog", "eel"], learning_rate=0.0)
    assert same.class_names == ["cat", "dog", "eel"] and np.all(head_of(same.model) == 1)
    other = finetune(model, class_names=["dog", "cat", "eel"], learning_rate=0.0)
    assert other.model.config.class_names == ("dog", "cat", "eel")
    assert not np.any(head_of(other.model))
    done = finetune(new_model(), class_names=["dog", "cat", "eel"], learning_rate=0.0)
    assert done.model.config.class_names == ("dog", "cat", "eel")


def whole_state(model):
    trained = sorted(weight.path for weight in model.trainable_weights)
    return [weight.path for weight in model.weights], trained, model.get_config(), weights_of(model)


MODELS = {
    "as it is": {},
    "another size": {"image_size": 16},
    "other classes": {"classes": 5},
    "no dropout": {"dropout": 0.0},
    "softmax": {"classifier_activation": "softmax"},
}


@pytest.mark.parametrize(("name", "lora_rank"), [("as it is", None), *((name, 2) for name in MODELS)])
def test_the_model_that_is_given_stays_as_it_is(name, lora_rank):
    model = new_model(**MODELS[name])
    before = whole_state(model)
    options = {"class_names": ["cat", "dog", "eel"], "steps": 1}
    done = finetune(model, recipe=RECIPE.replace(lora_rank=lora_rank, freeze="embedding"), **options)
    np.testing.assert_equal(whole_state(model), before)
    pairs = zip(weights_of(done.model), weights_of(model), strict=False)
    assert any(now.shape != then.shape or np.any(now != then) for now, then in pairs)


def test_starting_again_leaves_no_old_model_but_that_it_starts_from(tmp_path, monkeypatch):
    options = {"steps": 2, "every": 1, "output": tmp_path}
    finetune(new_model(), **options)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for path in (tmp_path / "model.keras", "~/model.keras"):
        with pytest.raises(ValueError, match=r"resume=False .*empties"):
            finetune(path, resume=False, **options)
    assert (tmp_path / "model.keras").exists()
    cut_off(finetune, 1, model=new_model(), resume=False, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("validation", [colours(11, 1), Sequence(colours(11, 1))], ids=["arrays", "pipeline"])
def test_validation_counts_every_image_once(validation):
    """11 images in batches of 8: the last batch is filled up, and what fills it counts nothing."""
    done = finetune(new_model(), recipe=RECIPE.replace(polyak=0.5), steps=3, validation=validation)
    images, labels = colours(11, 1)
    logits = done.model.predict(done.model.preprocess(images), verbose=0).astype("float64")
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(11), labels]
    assert done.accuracy == pytest.approx(np.mean(logits.argmax(-1) == labels), abs=1e-6)  # float32 sums of counts
    assert done.log[-1]["val_loss"] == pytest.approx(losses.mean(), rel=1e-5)  # float32 logits of two compilations


def test_adapters_of_a_recipe_are_merged_in_the_file(tmp_path):
    recipe = RECIPE.replace(lora_rank=2, lora_targets="*/mlp/fc1", freeze="head")
    done = finetune(new_model(), recipe=recipe, steps=2, output=tmp_path)
    assert trained_names(done.model) == {"block_0/mlp/fc1/lora_kernel_a", "block_0/mlp/fc1/lora_kernel_b"}
    written = keras.saving.load_model(tmp_path / "model.keras")
    assert not written.compiled and (tmp_path / "adapters.npz").exists()
    images = done.model.preprocess(IMAGES[0])
    np.testing.assert_allclose(written.predict(images, verbose=0), done.model.predict(images, verbose=0), atol=1e-5)
    model = new_model()
    training.load_adapters(model, tmp_path / "adapters.npz")
    again = finetune(done.model, recipe=recipe)  # goes on with its adapters
    assert trained_names(again.model) == {w for w in trained_names(model) if "lora" in w}
    for changes in ({"lora_targets": "query"}, {"lora_alpha": 9.0}, {"lora_rank": 3}):
        with pytest.raises(ValueError, match="has adapters"):
            finetune(done.model, recipe=recipe.replace(**changes))


def test_options_stand_once_and_zeros_are_zeros():
    options = {"momentum": 0.5, "batch_size": None, "freeze": "embedding", "every": None, "learning_rate": 0.0}
    recipe = finetune(new_model(), warmup_steps=0, steps=2, **options).recipe
    assert (recipe.momentum, recipe.batch_size, recipe.freeze) == (0.5, 8, ("embedding",))
    assert (recipe.learning_rate, recipe.warmup_steps) == (0, 0)


def test_a_run_evaluates_on_val_and_leaves_test_alone(tmp_path, capsys):
    """And leaves val/ alone where a share is evaluated on; without either, all images are trained on."""
    photos = write_folder(tmp_path / "photos", 9)
    (photos / "test").rename(photos / "val")
    shutil.rmtree(photos / "train")
    write_folder(photos, 12)
    for options, words in (({}, "9 to evaluate on (val)"), ({"validation": np.float32(0.25)}, "3 to evaluate on\n")):
        training.finetune(new_model(), photos, RECIPE, steps=1, **options)
        assert words in capsys.readouterr().err
    for name in ("val", "test"):
        shutil.rmtree(photos / name)
    training.finetune(new_model(), photos, RECIPE, steps=1, validation=0.25)
    assert "3 to evaluate on\n" in capsys.readouterr().err


def test_validation_on_what_is_trained_on_is_told():
    with pytest.warns(UserWarning, match="validation holds the training images"):
        finetune(new_model(), validation=IMAGES)


SHUFFLED = (IMAGES[0], IMAGES[1][::-1])


def test_the_figures_are_those_of_the_weights_that_a_callback_restored():
    recipe = training.Recipe(steps=6, batch_size=4, image_size=8, learning_rate=3.0, optimizer="sgd")
    stop = EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    options = {"validation": SHUFFLED, "every": 1, "verbose": False, "callbacks": [stop]}
    done = training.finetune(new_model(), IMAGES, recipe, **options)
    assert min(row["val_loss"] for row in done.log) < done.log[-1]["val_loss"]  # other weights were restored
    found = keras_vit.evaluation.evaluate(done.model, SHUFFLED, preprocess=True, progress=False)
    assert done.accuracy == pytest.approx(found.accuracy, abs=1e-6)  # float32 sums of counts


def spoilt(number, batches=6):
    pixels = np.random.default_rng(0).uniform(0, 255, (batches, 2, 8, 8, 3)).astype("float32")
    pixels[number, 0, 0, 0, 0] = np.nan
    return [(one, np.array([0, 1])) for one in pixels]


@pytest.mark.each
@pytest.mark.parametrize("where", ["data", pytest.param("validation", marks=pytest.mark.once)])
def test_the_error_of_a_late_batch_is_that_of_the_data(where):
    """TensorFlow makes another of it; the first two batches are read before its loop begins."""
    given = {"data": IMAGES, "validation": IMAGES} | {where: spoilt(4)}
    options = {"classes": 3} if where == "data" else {}
    with pytest.raises(ValueError, match="batch 4.* NaN"):
        finetune(new_model(), steps=8, batch_size=2, **given, **options)


def test_heads_and_losses_of_other_targets():
    """None before, as after training without labels; a sigmoid before, on classes."""
    tags = IMAGES[0], np.eye(3, dtype="float32")[IMAGES[1]]
    done = finetune(new_model(classes=None), tags, target="multilabel")
    assert done.model.config.classifier_activation == "sigmoid"
    assert finetune(done.model).model.config.classifier_activation == "softmax"


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_the_loss_is_scaled_for_float16(activation):
    found = []
    callback = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: found.append(callback.model.optimizer))
    model = VisionTransformer(CONFIG.replace(classifier_activation=activation), dtype="mixed_float16")
    done = finetune(model, callbacks=[callback])
    assert type(found[0]).__name__ == "LossScaleOptimizer" and np.isfinite(done.log[-1]["loss"])


SQUARES = np.arange(8)[:, None] * np.ones((8, 8, 8), int) // 4
TASKS = {
    "labels": ({}, IMAGES),
    "a task by name": ({"task": "masked_patches"}, IMAGES),
    "no labels": ({"task": "lejepa"}, IMAGES[0]),
    "masks": ({"augmentation": MaskAugmentation()}, (IMAGES[0], SQUARES.astype("uint8"))),
    "boxes": ({"augmentation": BoxAugmentation()}, ([*IMAGES[0]], [{"boxes": [[2, 2, 6, 6]], "labels": [0]}] * 8)),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_recipe_names_its_task(name):
    fields, data = TASKS[name]
    recipe = training.Recipe(steps=1, batch_size=4, image_size=8, **fields)
    kind = {"masks": "LinearSegmenter", "boxes": "Detector"}.get(name, "VisionTransformer")
    assert type(training.train(new_model(dropout=0.0), data, recipe, verbose=False).model).__name__ == kind
    if "task" in fields:
        with pytest.raises(ValueError, match="but this call is for fine-tuning: use training.train"):
            training.finetune(new_model(), data, recipe)
    if name == "labels":  # also where one task's class is a kind of the other's
        recipe = recipe.replace(task="finetune")
        with pytest.raises(ValueError, match="task='finetune', but this call is for pre-training"):
            training.pretrain(new_model(), data, recipe)
        teacher = training.distillation(new_model(dropout=0.0))
        training.finetune(new_model(dropout=0.0), data, recipe, task=teacher, verbose=False)


def test_a_published_recipe_names_its_objective():
    options = {"steps": 1, "batch_size": 4, "image_size": 8, "learning_rate": 0.0, "verbose": False}
    done = training.pretrain(new_model(), IMAGES, "pretrain/masked_patches", **options)
    assert done.log[-1]["loss"] > 5  # of 512 colours; that of four classes begins at 1.4
