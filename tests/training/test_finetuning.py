"""`finetune` and `pretrain` from data to files: what they train, write, refuse, and how they go on after a kill."""

import dataclasses
import inspect
import json
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import BiT, BiTConfig, VisionTransformer, ViTConfig, cli, training
from keras_vit.training import pretraining
from keras_vit.training.pretraining import masked_patch_model
from tests.processes import REPOSITORY, environment

pytestmark = pytest.mark.long

CONFIG = ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=12, classes=3, dropout=0.1)
RECIPE = training.recipe("finetune/cifar10").replace(
    batch_size=8, learning_rate=0.1, image_size=8, augmentation=training.Augmentation(min_area=0.5)
)


def colours(count, seed=0):
    """Images of three colours and noise: easy, but not given away."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    pixels = rng.integers(0, 60, (count, 8, 8, 3))
    pixels[np.arange(count), :, :, labels] += 150
    return pixels.astype("uint8"), labels


def new_model(config=CONFIG):
    keras.utils.set_random_seed(2)
    return VisionTransformer(config)


def weights_of(model):
    return [np.copy(keras.ops.convert_to_numpy(weight.value)) for weight in model.weights]


def write_folder(root, count=24):
    Image = pytest.importorskip("PIL.Image")
    for split, seed in (("train", 0), ("test", 1)):
        for number, (pixels, label) in enumerate(zip(*colours(count, seed), strict=True)):
            folder = root / split / ("red", "green", "blue")[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a folder of images, from a file of the official layout, with everything that it leaves."""
    folder = tmp_path_factory.mktemp("finetune")
    data = write_folder(folder / "data")
    source = new_model(CONFIG.replace(classes=5, dropout=0.0))
    source.get_layer("head").kernel.assign(np.ones((8, 5)))
    keras_vit.to_checkpoint(source, folder / "source.npz")
    done = training.finetune(
        str(folder / "source.npz"), data, RECIPE, output=folder / "run", steps=30, every=10, verbose=False
    )
    return done, folder


def test_it_learns_and_says_so(trained):
    done, _ = trained
    assert [row["step"] for row in done.log] == [10, 20, 30]
    assert done.accuracy == done.log[-1]["val_accuracy"] > 0.9
    assert done.log[0]["loss"] > done.log[-1]["loss"]
    assert done.class_names == ["blue", "green", "red"]
    assert done.recipe.steps == 30
    assert done.log[-1]["learning_rate"] < done.log[0]["learning_rate"] <= 0.1


def test_what_it_leaves(trained):
    done, folder = trained
    run = folder / "run"
    assert {path.name for path in run.iterdir()} >= {"run.json", "log.csv", "classes.txt", "model.keras"}
    assert [path.name for path in run.glob("step-*")] == ["step-00000030.npz"]
    assert (run / "classes.txt").read_text().split() == done.class_names
    model = keras.saving.load_model(run / "model.keras")
    assert not model.compiled
    assert model.config == CONFIG.replace(classes=3, dropout=0.0, class_names=("blue", "green", "red"))
    images = colours(6, 5)[0]
    # the same weights, another compilation
    got, wanted = (m.predict(m.preprocess(images), verbose=0) for m in (model, done.model))
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.once
def test_the_command_line_trains_and_predicts(trained, capsys, tmp_path):
    """What the first run has trained, told by pictures that it has not seen, with the names of its classes."""
    _, folder = trained
    arguments = ["finetune", folder / "source.npz", folder / "data", "--recipe", "finetune/cifar10", "--steps", 1]
    arguments += ["--batch-size", 8, "--image-size", 8, "--output", tmp_path / "run", "--json"]
    assert cli.main([str(argument) for argument in arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["class_names"] == ["blue", "green", "red"] and found["log"][-1]["step"] == 1
    assert found["recipe"]["augmentation"] == dataclasses.asdict(training.Augmentation())
    picture = next((folder / "data/test/red").iterdir())
    assert cli.main(["predict", str(picture), "--weights", str(folder / "run/model.keras"), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["classes"][0]["name"] == "red"
    assert sum(entry["probability"] for entry in answer["classes"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.filterwarnings("ignore:Tensor.T is deprecated on 0-D tensors:UserWarning")  # Keras's RandAugment on torch
@pytest.mark.once
def test_the_command_line_changes_the_augmentation(trained, capsys, tmp_path):
    _, folder = trained
    arguments = ["finetune", folder / "source.npz", folder / "data", "--steps", 1, "--batch-size", 8]
    arguments += ["--image-size", 8, "--output", tmp_path / "run", "--json"]
    arguments += ["--crop", "resize", "--no-flip", "--mixup", 0.2, "--randaugment", 2, 10]
    assert cli.main([str(argument) for argument in arguments]) == 0
    wanted = training.Augmentation(crop="resize", flip=False, mixup=0.2, randaugment=(2, 10))
    assert training.Recipe.from_dict(json.loads(capsys.readouterr().out)["recipe"]).augmentation == wanted
    assert cli.main([*map(str, arguments), "--crop", "middle"]) == 1
    assert "crop must be one of" in capsys.readouterr().err


@pytest.mark.once
def test_a_model_that_fits_is_trained_in_place():
    model = new_model()
    assert training.finetune(model, colours(8), RECIPE, image_size=8, steps=1, verbose=False).model is model


@pytest.mark.once
def test_it_says_what_it_found_and_is_going_to_do(capsys):
    recipe = RECIPE.replace(lora_rank=2)
    training.finetune(new_model(), colours(8), recipe, validation=colours(6, 1), steps=2, class_names=["a", "b", "c"])
    text = " ".join(capsys.readouterr().err.split())
    assert "8 images of 3 classes (a, b, c) to train on, 6 to evaluate on" in text
    model = new_model()
    training.add_lora(model, 2)
    counts = [f"{sum(int(np.prod(w.shape)) for w in ws):,}" for ws in (model.weights, model.trainable_weights)]
    assert f"VisionTransformer {model.name}, {counts[0]} parameters, {counts[1]} of them trained" in text
    assert "2 updates of 8 images, 8 x 8 pixels (4 patches), learning rate 0.1, finetune/cifar10" in text
    assert "sgd, cosine" in text and "on torch, cpu" in text
    training.finetune(new_model(), colours(8), RECIPE, steps=1, verbose=False)
    assert not capsys.readouterr().err
    training.finetune(new_model(), colours(8), RECIPE, steps=1)
    assert "no images to evaluate on (validation=, or test/)" in capsys.readouterr().err


@pytest.mark.once
def test_an_image_size_that_nobody_asked_for(trained):
    """384 pixels in patches of 4 are 9,216 tokens: hours and gigabytes instead of a minute."""
    source = str(trained[1] / "source.npz")
    with pytest.raises(UserWarning, match=r"384.*96 x 96 patches.*image_size="):  # an error before anything is trained
        training.finetune(source, colours(8), "finetune/cifar10", steps=1, batch_size=2)


def test_a_finished_run_is_not_run_again(trained):
    done, folder = trained
    source, data = str(folder / "source.npz"), folder / "data"
    again = training.finetune(source, data, RECIPE, output=folder / "run", steps=30, every=10, verbose=False)
    assert list(again.log) == list(done.log)
    for got, wanted in zip(weights_of(again.model), weights_of(done.model), strict=True):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(ValueError, match="other settings: recipe.steps was 30 and is now 31. Choose"):
        training.finetune(source, data, RECIPE, output=folder / "run", steps=31, every=10, verbose=False)


class Stop(keras.callbacks.Callback):
    """Calls a function after some batches."""

    def __init__(self, batches, stop):
        super().__init__()
        self.batches, self.stop = batches, stop

    def on_train_batch_end(self, batch, logs=None):
        self.batches -= 1
        if self.batches == 0:
            self.stop()


def run_of_ten(model, output, **options):
    return training.finetune(model, colours(20), RECIPE, steps=10, every=4, output=output, verbose=False, **options)


SCRIPT = """
    import os, signal, sys
    from tests.training.test_finetuning import Stop, new_model, run_of_ten

    run_of_ten(new_model(), sys.argv[1], callbacks=[Stop(6, lambda: os.kill(os.getpid(), signal.SIGKILL))])
"""


def kill(output):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(output)]
    killed = subprocess.run(command, env=environment(), cwd=REPOSITORY, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr


def fail(output):
    def stop():
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        run_of_ten(new_model(), output, callbacks=[Stop(6, stop)])


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_run_ends_with_the_same_weights(tmp_path, backend):
    """A kill takes a process, and what it leaves in the folder is the same on all backends as after an error."""
    whole = new_model()
    log = run_of_ten(whole, tmp_path / "whole").log
    (kill if backend == "torch" else fail)(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-00000004.npz"]
    model = new_model()
    resumed = run_of_ten(model, tmp_path / "run").log
    assert [row["loss"] for row in resumed] == [row["loss"] for row in log]
    for got, wanted in zip(weights_of(model), weights_of(whole), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_the_same_seed_gives_the_same_model():
    def run():
        return training.finetune(new_model(CONFIG.replace(classes=7)), colours(20), RECIPE, steps=2, verbose=False)

    first, second = run(), run()
    assert first.log[-1]["loss"] == second.log[-1]["loss"]
    assert first.model.config.classes == 3 and first.output is None and first.accuracy is None


@pytest.mark.parametrize("lora_rank", [None, 2], ids=["whole", "adapters"])
def test_the_seed_decides_the_masks_of_a_model_that_was_made_before(lora_rank):
    """The states of its random generators would tell how many models the program has made."""
    config = CONFIG.replace(dropout=0.5, attention_dropout=0.5, drop_path=0.5, depth=2)
    start = new_model(config).get_weights()  # states of random generators are none of them
    found = []
    for models, seed in ((0, 0), (3, 0), (0, 1)):
        for _ in range(models):
            keras.utils.set_random_seed(models)
            VisionTransformer(config)
        model = VisionTransformer(config)
        for weight, value in zip(model.weights, start, strict=True):
            if weight.trainable:
                weight.assign(value)
        recipe = RECIPE.replace(steps=6, lora_rank=lora_rank)
        done = training.finetune(model, colours(20), recipe, seed=seed, verbose=False)
        assert done.model is model
        found.append(weights_of(model))
    first, second, other = found
    for got, wanted in zip(second, first, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert any(np.any(a != b) for a, b in zip(other, first, strict=True))


def test_a_model_with_softmax_is_trained_on_its_logits_in_place():
    model = new_model(CONFIG.replace(classifier_activation="softmax", include_preprocessing=True))
    before = weights_of(model)
    done = training.finetune(model, colours(20), RECIPE.replace(freeze=("embedding",)), steps=3, verbose=False)
    assert done.model is model
    assert model.config.classifier_activation == "softmax"
    after = weights_of(model)
    changed = {w.path: np.any(a != b) for w, a, b in zip(model.weights, after, before, strict=True)}
    assert not any(value for path, value in changed.items() if path.startswith("embedding"))
    assert changed["head/kernel"] and changed["block_0/attention/query/kernel"]


@pytest.mark.once
def test_a_model_made_for_pretraining_is_the_recipe_s():
    recipe = RECIPE.replace(loss="sigmoid", head_bias=-10.0, image_size=16, dropout=0.1, drop_path=0.2)
    model = pretraining.model_with_any_head("ViT-Ti/16", recipe, SimpleNamespace(classes=3), None)
    config = model.config
    assert (config.image_size, config.classes, config.dropout, config.drop_path) == ((16, 16), 3, 0.1, 0.2)
    np.testing.assert_array_equal(model.get_layer("head").get_weights()[1], [-10.0] * 3)


def test_pretraining_without_labels_trains_the_encoder():
    model = new_model()
    before = {weight.path: np.copy(keras.ops.convert_to_numpy(weight.value)) for weight in model.weights}
    recipe = RECIPE.replace(optimizer="adamw", learning_rate=0.01)
    done = training.pretrain(
        model,
        colours(24),
        recipe,
        objective="masked_patches",
        validation=colours(8, 1),
        steps=12,
        every=4,
        verbose=False,
    )
    assert done.model is model
    assert done.log[-1]["val_loss"] < done.log[0]["val_loss"] < 6.3  # log(512) is 6.2
    after = {weight.path: keras.ops.convert_to_numpy(weight.value) for weight in model.weights}
    assert all(np.any(after[path] != before[path]) for path in before if not path.startswith("head"))
    np.testing.assert_array_equal(after["head/kernel"], before["head/kernel"])
    assert masked_patch_model(model).count_params() > model.count_params()


@pytest.mark.once
def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(ValueError, match="There is no recipe 'finetune/cifar'"):
        training.finetune(new_model(), colours(8), "finetune/cifar", verbose=False)
    for argument in ("every", "steps", "batch_size", "learning_rate", "warmup_steps"):
        value = 0 if argument in ("every", "steps", "batch_size") else -1
        with pytest.raises(ValueError, match=f"{argument} must be a"):
            training.finetune(new_model(), colours(8), RECIPE, **{"steps": 2, argument: value}, verbose=False)
    with pytest.raises(ValueError, match="warmup_steps must be a number of steps.*less than steps=2"):
        training.finetune(new_model(), colours(8), RECIPE, steps=2, warmup_steps=2, verbose=False)
    with pytest.raises(TypeError, match="model must be a model of keras_vit"):
        training.finetune(keras.Sequential(), colours(8), RECIPE, verbose=False)
    with pytest.raises(ValueError, match="dtype is for models that are loaded"):
        training.finetune(new_model(), colours(8), RECIPE, dtype="mixed_bfloat16", verbose=False)
    with pytest.raises(ValueError, match="objective must be one of"):
        training.pretrain(new_model(), colours(8), RECIPE, objective="rotation", verbose=False)
    with pytest.raises(ValueError, match=r"3 outputs, but the data has 4 classes.*with_classes\(4\)"):
        images, labels = colours(8)
        labels[0] = 3
        training.pretrain(new_model(), (images, labels), RECIPE, verbose=False)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        training.finetune(new_model(), colours(8), RECIPE, output=tmp_path, verbose=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.once
def test_zeros_are_taken_at_their_word():
    model = new_model()
    before = weights_of(model)
    done = training.finetune(model, colours(8), RECIPE, learning_rate=0.0, warmup_steps=0, steps=2, verbose=False)
    assert (done.recipe.learning_rate, done.recipe.warmup_steps) == (0, 0)
    for got, wanted in zip(weights_of(done.model), before, strict=True):
        if not np.issubdtype(got.dtype, np.integer):  # states of random generators
            np.testing.assert_array_equal(got, wanted)
    assert float(training.build_schedule(done.recipe.replace(learning_rate=0.1))(0)) == pytest.approx(0.1)  # no warm-up


def trained_names(model):
    return {weight.path for weight in model.trainable_weights}


@pytest.mark.parametrize("change", [{"classes": 5}, {"classes": 5, "image_size": 16}, {"image_size": 16}])
@pytest.mark.once
def test_what_is_frozen_stays_frozen_and_the_name_too(change):
    config = CONFIG.replace(**change)
    model = VisionTransformer(config, name="mine")
    training.freeze(model, ["embedding", "block_0"])
    done = training.finetune(model, colours(8), RECIPE, image_size=8, steps=1, verbose=False)
    assert done.model is not model and done.model.name == "mine"
    assert trained_names(done.model) == trained_names(model)
    assert "head/kernel" in trained_names(model) and "block_0/attention/query/kernel" not in trained_names(model)


@pytest.mark.once
def test_a_model_that_is_frozen_as_a_whole_is_refused():
    for classes, message in ((5, "also the new head"), (3, "nothing would be learned")):
        model = new_model(CONFIG.replace(classes=classes))
        model.trainable = False
        with pytest.raises(ValueError, match=message):
            training.finetune(model, colours(8), RECIPE, steps=1, verbose=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model with a trained head, as a file and as an object."""
    model = new_model(CONFIG.replace(dropout=0.0))
    model.get_layer("head").kernel.assign(np.ones((8, 3)))
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return path, model


@pytest.mark.once
def test_a_saved_model_is_treated_like_the_model_itself(saved):
    path, _ = saved
    recipe = RECIPE.replace(dropout=0.2, drop_path=0.1, learning_rate=0.0)
    done = training.finetune(path, colours(8), recipe, steps=1, dtype="mixed_bfloat16", verbose=False)
    config = done.model.config
    assert (config.dropout, config.drop_path, config.image_size) == (0.2, 0.1, (8, 8))
    assert done.model.dtype_policy.name == "mixed_bfloat16"
    np.testing.assert_array_equal(done.model.get_layer("head").get_weights()[0], np.ones((8, 3)))


@pytest.mark.once
def test_the_rates_of_a_recipe_are_those_of_a_given_model_too(saved):
    _, model = saved
    done = training.finetune(model, colours(8), RECIPE.replace(drop_path=0.1), steps=1, verbose=False)
    assert done.model.config.drop_path == 0.1 and model.config.drop_path == 0
    resnet = BiT(BiTConfig(stages=(1,), width=32, classes=3, image_size=8))
    with pytest.raises(ValueError, match="a BiT has no dropout"):
        training.finetune(resnet, colours(8), RECIPE.replace(dropout=0.1), steps=1, verbose=False)


@pytest.mark.once
def test_a_dtype_that_does_not_exist_is_an_error(saved, tmp_path):
    path, model = saved
    keras_vit.to_checkpoint(model, tmp_path / "model.npz")
    for source in (path, tmp_path / "model.npz"):
        with pytest.raises((TypeError, ValueError), match="nonsense"):
            training.finetune(source, colours(8), RECIPE, steps=1, dtype="nonsense", verbose=False)


@pytest.mark.once
def test_names_of_other_classes_need_another_head(tmp_path):
    """As many classes are not the same classes."""
    model = new_model(CONFIG.replace(class_names=("cat", "dog", "eel")))
    model.get_layer("head").kernel.assign(np.ones((8, 3)))
    options = {"steps": 1, "learning_rate": 0.0, "verbose": False}
    same = training.finetune(model, colours(8), RECIPE, class_names=["cat", "dog", "eel"], **options)
    assert same.model is model and same.class_names == ["cat", "dog", "eel"]
    other = training.finetune(model, colours(8), RECIPE, class_names=["dog", "cat", "eel"], **options)
    assert other.model.config.class_names == ("dog", "cat", "eel")
    assert not np.any(other.model.get_layer("head").get_weights()[0])
    unnamed = new_model()
    done = training.finetune(unnamed, colours(8), RECIPE, class_names=["dog", "cat", "eel"], **options)
    assert done.model is unnamed and unnamed.config.class_names == ("dog", "cat", "eel")


@pytest.mark.once
def test_starting_again_leaves_no_old_model(tmp_path):
    options = {"steps": 2, "every": 1, "output": tmp_path, "verbose": False}
    training.finetune(new_model(), colours(8), RECIPE, **options)
    assert (tmp_path / "model.keras").exists()

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError("an early failure")

    with pytest.raises(RuntimeError, match="an early failure"):
        training.finetune(new_model(), colours(8), RECIPE, resume=False, callbacks=[Fail()], **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]


@pytest.mark.once
def test_starting_again_does_not_remove_the_model_that_it_starts_from(tmp_path):
    training.finetune(new_model(), colours(8), RECIPE, steps=1, output=tmp_path, verbose=False)
    with pytest.raises(ValueError, match="resume=False empties"):
        training.finetune(
            tmp_path / "model.keras", colours(8), RECIPE, steps=1, output=tmp_path, resume=False, verbose=False
        )
    assert (tmp_path / "model.keras").exists()


def test_no_thread_is_left():
    training.finetune(new_model(), colours(8), RECIPE, validation=colours(4, 1), steps=1, verbose=False)
    before = threading.active_count()
    training.finetune(new_model(), colours(8), RECIPE, validation=colours(4, 1), steps=1, verbose=False)
    assert threading.active_count() <= before


@pytest.mark.parametrize("polyak", [None, 0.5])
def test_validation_counts_every_image_once(polyak):
    """11 images in batches of 8: the last batch is filled up, and what fills it counts nothing."""
    images, labels = colours(11, 1)
    recipe = RECIPE.replace(polyak=polyak)
    done = training.finetune(new_model(), colours(20), recipe, validation=(images, labels), steps=3, verbose=False)
    logits = done.model.predict(done.model.preprocess(images), verbose=0).astype("float64")
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(11), labels]
    assert done.accuracy == pytest.approx(np.mean(logits.argmax(-1) == labels), abs=1e-6)  # float32 sums of counts
    assert done.log[-1]["val_loss"] == pytest.approx(losses.mean(), rel=1e-5)  # float32 logits of two compilations


@pytest.mark.once
def test_a_pipeline_of_test_images_may_end_with_a_short_batch():
    images, labels = colours(11, 1)

    class Batches(keras.utils.PyDataset):
        num_batches = 3

        def __getitem__(self, index):
            return tuple(array[4 * index : 4 * index + 4] for array in (images, labels))

    batches = Batches()
    done = training.finetune(new_model(), colours(20), RECIPE, validation=batches, steps=2, verbose=False)
    logits = done.model.predict(done.model.preprocess(images), verbose=0)
    assert done.accuracy == pytest.approx(np.mean(logits.argmax(-1) == labels), abs=1e-6)


@pytest.mark.once
def test_adapters_of_a_recipe_are_merged_in_the_file(tmp_path):
    recipe = RECIPE.replace(lora_rank=2, lora_targets="*/mlp/fc1", freeze="head")
    done = training.finetune(new_model(), colours(8), recipe, steps=2, output=tmp_path, verbose=False)
    assert trained_names(done.model) == {"block_0/mlp/fc1/lora_kernel_a", "block_0/mlp/fc1/lora_kernel_b"}
    written = keras.saving.load_model(tmp_path / "model.keras")
    assert not written.compiled and (tmp_path / "adapters.npz").exists()
    images = done.model.preprocess(colours(6, 5)[0])
    np.testing.assert_allclose(written.predict(images, verbose=0), done.model.predict(images, verbose=0), atol=1e-5)
    model = new_model()
    training.load_adapters(model, tmp_path / "adapters.npz")
    again = training.finetune(done.model, colours(8), recipe, steps=1, verbose=False)  # goes on with its adapters
    assert again.model is done.model and trained_names(again.model) == {w for w in trained_names(model) if "lora" in w}


@pytest.mark.once
def test_pretraining_goes_on_with_a_model_of_a_file(saved):
    path, _ = saved
    recipe = RECIPE.replace(learning_rate=0.0, freeze=("embedding",))
    done = training.pretrain(path, colours(8), recipe, image_size=16, steps=1, verbose=False)
    assert done.model.config.image_size == (16, 16)
    assert "embedding/kernel" not in trained_names(done.model)
    np.testing.assert_array_equal(done.model.get_layer("head").get_weights()[0], np.ones((8, 3)))


@pytest.mark.once
def test_masked_patches_need_more_than_one():
    with pytest.raises(ValueError, match="one patch of"):
        training.pretrain(
            new_model(CONFIG.replace(patch_size=8)), colours(8), RECIPE, objective="masked_patches", verbose=False
        )


@pytest.mark.once
def test_pretrain_takes_the_options_of_finetune():
    finetune, pretrain = (
        {name: p for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
        for function in (training.finetune, training.pretrain)
    )
    assert pretrain.pop("objective").default == "labels" and finetune.pop("task") is not None
    assert finetune == pretrain
    with pytest.raises(TypeError, match="unexpected keyword argument 'stepz'"):
        training.pretrain(new_model(), colours(8), RECIPE, stepz=2)
