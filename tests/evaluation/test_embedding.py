"""Features of many images in one file: what is in it, and that nothing of it is lost or doubled."""

import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation import embed, embedding_files, join_embeddings
from tests.compute import forward
from tests.processes import environment
from tests.tolerances import SAME_FUNCTION

Image = pytest.importorskip("PIL.Image")
PIPELINE = {"resize": "shortest", "crop_ratio": 0.8, "filter": "bicubic", "pixel_mean": (0.1, 0.5, 0.6)}


def make(seed=0, **fields):
    config = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 2, "heads": 2, "mlp_width": 16, "classes": 3}
    with keras_vit.layers.skip_initialization():
        model = keras_vit.VisionTransformer(keras_vit.ViTConfig(**config | PIPELINE | fields))
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0.05, 0.3, weight.shape))
    return model


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Eleven images in folders, of several sizes, and a text that is none."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    (folder / "b" / "c").mkdir(parents=True)
    for i, place in enumerate(["z", "b/ü", "b/c/1", *[f"a{n}" for n in range(8)]]):
        pixels = rng.integers(0, 256, (20 + i, 31 - i, 3), dtype="uint8")
        Image.fromarray(pixels).save(folder / f"{place}.png")
    return folder


NAMES = [*[f"a{n}.png" for n in range(8)], "b/c/1.png", "b/ü.png", "z.png"]


def read(path):
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.fixture
def unfinished(monkeypatch):
    """A function that embeds and is stopped after some batches; gives what is left to go on from."""

    def stop(batches, model, images, output, **options):
        append, count = embedding_files.Journal.append, 0

        def append_or_stop(self, *args):
            nonlocal count
            if count == batches:
                raise KeyboardInterrupt
            count += 1
            append(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(embedding_files.Journal, "append", append_or_stop)
            with pytest.raises(KeyboardInterrupt):
                embed(model, images, output, **options)
        return output.with_name(f"{output.name}.unfinished") / "rows"

    return stop


@pytest.mark.parametrize("kind", ["vit", "dynamic", "preprocessing", pytest.param("bit", marks=pytest.mark.once)])
def test_features_are_those_of_the_extractor_on_the_preprocessed_images(kind, photos, tmp_path):
    if kind == "bit":
        model = keras_vit.BiT(keras_vit.BiTConfig(image_size=32, stages=(1, 1), width=32, classes=3))
    else:
        model = make(**{"dynamic": {"dynamic": True}, "preprocessing": {"include_preprocessing": True}}.get(kind, {}))
    name = {"dynamic": "block_-1", "bit": "stage_2"}.get(kind, "pre_logits")
    done = embed(model, photos, tmp_path / "x.npz", features=name, batch_size=4, progress=False)
    assert list(tmp_path.iterdir()) == [tmp_path / "x.npz"]
    file = read(done.path)
    assert file["names"].tolist() == NAMES and file["skipped"].tolist() == []
    images = np.concatenate([model.preprocess(keras_vit.load_image(photos / name)) for name in NAMES])
    wanted = forward(keras_vit.feature_extractor(model, [name]), images)[name]
    assert file["features"].dtype == np.float32 and file["features"].shape == (11, *done.shape) == wanted.shape
    # A batch of another size is summed up in another order; sums err by the size of what they are of.
    atol = SAME_FUNCTION * max(1, np.abs(wanted).max())
    np.testing.assert_allclose(file["features"], wanted, rtol=0, atol=atol)


@pytest.mark.once
def test_shares_join_to_the_file_of_one_process(model, photos, tmp_path):
    options = {"batch_size": 2, "progress": False}
    embed(model, photos, tmp_path / "whole.npz", **options)
    parts = [tmp_path / f"part{i}.npz" for i in range(8)]  # more than the 6 batches: two have none
    counts = [embed(model, photos, part, shard=(i, 8), **options).count for i, part in enumerate(parts)]
    assert sorted(counts) == [0, 0, 1, 2, 2, 2, 2, 2]
    joined = join_embeddings(parts[::-1], tmp_path / "joined.npz")
    assert joined.count == 11 and joined.path.read_bytes() == (tmp_path / "whole.npz").read_bytes()
    # And embedding once more finds that all is done.
    before = joined.path.stat()
    assert embed(model, photos, joined.path, **options) == joined
    assert joined.path.stat() == before
    for wrong, message in [
        (parts[2:], "Images 0 to 1 are missing"),
        (parts[:-1], "Images 10 to 10 are missing"),
        ([*parts, parts[3]], "are there twice"),
        ([], "paths must be a list"),
        (parts[0], "paths must be a list"),
    ]:
        with pytest.raises(ValueError, match=message):
            join_embeddings(wrong, tmp_path / "wrong.npz")
    with pytest.raises(FileExistsError, match="joined.npz exists"):
        join_embeddings(parts, joined.path)
    embed(make(1), photos, parts[0], shard=(0, 8), overwrite=True, **options)
    with pytest.raises(ValueError, match=r"no parts of one whole: the model \(its config, weights or dtype policy\)"):
        join_embeddings(parts, tmp_path / "wrong.npz")
    assert not (tmp_path / "wrong.npz").exists()


@pytest.mark.once
def test_a_run_that_was_stopped_anywhere_ends_with_the_same_bytes(model, photos, tmp_path, unfinished):
    options = {"batch_size": 4, "progress": False}
    whole = embed(model, photos, tmp_path / "whole.npz", **options).path.read_bytes()
    output = tmp_path / "stopped.npz"
    rows = unfinished(2, model, photos, output, **options)
    journal = rows.read_bytes()
    record = len(journal) // 2
    zeros, flipped = bytes(50), bytes([journal[record + 40] ^ 1])
    for left in (
        b"",
        journal[:7],
        journal[: record - 1],
        journal[: record + 30],
        journal,
        journal + zeros,  # of a file system that has lost its power
        journal[: record + 40] + flipped + journal[record + 41 :],
    ):
        unfinished(0, model, photos, output, **options)
        rows.write_bytes(left)
        (rows.parent / ".part-00000000-complete.npz").write_bytes(b"half")
        embed(model, photos, output, **options)
        assert output.read_bytes() == whole
        output.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["whole.npz"]
    # Killed after the output was put into its place.
    unfinished(2, model, photos, output, **options)
    output.write_bytes(whole)
    embed(model, photos, output, **options)
    assert not rows.parent.exists() and output.read_bytes() == whole


@pytest.mark.once
def test_what_is_done_is_not_done_again(model, photos, tmp_path, unfinished, monkeypatch):
    unfinished(2, model, photos, tmp_path / "x.npz", batch_size=4)
    seen = []
    monkeypatch.setattr(
        "keras_vit.evaluation.embedding.load_image", lambda path: seen.append(path.name) or keras_vit.load_image(path)
    )
    embed(model, photos, tmp_path / "x.npz", batch_size=4, progress=False)
    assert seen == ["1.png", "ü.png", "z.png"]


@pytest.mark.once
def test_what_is_unfinished_of_something_else_is_refused(model, photos, tmp_path, unfinished):
    output = tmp_path / "x.npz"
    unfinished(1, model, photos, output, batch_size=4)
    files = sorted(photos.rglob("*.png"))
    for arguments, options, message in [
        ((make(1), photos), {}, "the model .* differs"),
        ((model, files[:-1]), {}, "the images .* differs; the number of images was 11 and is 10 now"),
        ((model, photos), {"features": "encoded"}, "features was 'pre_logits' and is 'encoded' now"),
        ((model, photos), {"dtype": "float16"}, "dtype was 'float32' and is 'float16' now"),
        ((model, photos), {"shard": (0, 2)}, "the share of the images was"),
    ]:
        with pytest.raises(ValueError, match=f"x.npz.unfinished is what another run has left: {message}"):
            embed(*arguments, output, batch_size=4, progress=False, **options)
    embed(model, photos, output, batch_size=4, dtype="float16", overwrite=True, progress=False)
    assert read(output)["features"].dtype == np.float16
    with pytest.raises(ValueError, match="x.npz holds other features: dtype was 'float16' and is 'float32' now"):
        embed(model, photos, output, progress=False)
    output.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"x.npz is damaged, or not a file that embed wrote \(File is not a zip file"):
        embed(model, photos, output, progress=False)
    assert output.read_bytes() == b"something else" and list(tmp_path.iterdir()) == [output]


@pytest.mark.once
def test_files_that_are_no_images(model, photos, tmp_path):
    bad = tmp_path / "bad"
    bad.mkdir()
    for name in ("a0.png", "a1.png"):
        (bad / name).write_bytes((photos / name).read_bytes())
    (bad / "a1.jpg").write_bytes(b"\xff\xd8 no image")
    (bad / "empty.png").touch()
    (bad / "notes.txt").write_text("a text")
    output = tmp_path / "x.npz"
    with (
        pytest.warns(UserWarning, match="1 file is no image by name, and left out: .*notes.txt"),
        pytest.raises(ValueError, match='a1.jpg cannot be read: .*on_bad_image="skip"'),
    ):
        embed(model, bad, output, progress=False)
    with pytest.warns(UserWarning) as warnings:
        done = embed(model, bad, output, on_bad_image="skip", progress=False)
    said = sorted(str(warning.message).partition(":")[0] for warning in warnings if warning.category is UserWarning)
    assert said == ["1 file is no image by name, and left out", "a1.jpg is left out", "empty.png is left out"]
    assert done.skipped == ("a1.jpg", "empty.png") and done.count == 2
    file = read(output)
    assert file["names"].tolist() == ["a0.png", "a1.png"] and file["skipped"].tolist() == ["a1.jpg", "empty.png"]
    good = embed(model, [bad / "a0.png", bad / "a1.png"], tmp_path / "good.npz", progress=False)
    np.testing.assert_allclose(file["features"], read(good.path)["features"], rtol=1e-5, atol=SAME_FUNCTION)
    (bad / "notes.txt").unlink()
    with pytest.raises(ValueError, match=r"x.npz was made without 2 images .*\(a1.jpg, empty.png\)"):
        embed(model, bad, output, progress=False)
    # A file that is named is asked for, whatever it is called.
    (bad / "notes.txt").write_text("a text")
    with pytest.raises(ValueError, match="notes.txt cannot be read"):
        embed(model, [bad / "notes.txt"], tmp_path / "none.npz", progress=False)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="None of the 1 images can be read"):
        embed(model, [bad / "notes.txt"], tmp_path / "none.npz", on_bad_image="skip", progress=False)


@pytest.mark.once
def test_what_makes_no_sense_is_refused(model, photos, tmp_path):
    grey = make(channels=1, pixel_mean=0.5)
    output = tmp_path / "x.npz"
    (tmp_path / "empty").mkdir()
    for error, arguments, options, message in [
        (TypeError, ("glyphs", photos, output), {}, "model must be a VisionTransformer or a BiT, but str"),
        (ValueError, (grey, photos, output), {}, "takes 1 channels"),
        (ValueError, (model, photos, tmp_path / "x.csv"), {}, "must end with .npz or .parquet"),
        (ValueError, (model, photos, output), {"features": "block_2"}, "features must be a list of names"),
        (ValueError, (model, photos, output), {"batch_size": 0}, "batch_size must be"),
        (ValueError, (model, photos, output), {"dtype": "int8"}, "dtype must be one of"),
        (ValueError, (model, photos, output), {"on_bad_image": "go"}, "on_bad_image must be one of"),
        (ValueError, (model, photos, output), {"shard": (2, 2)}, r"shard must be \(i, n\)"),
        (ValueError, (model, photos, output), {"shard": "0/2"}, r"shard must be \(i, n\)"),
        (ValueError, (model, photos, output), {"shard": (0.0, 2)}, r"shard must be \(i, n\)"),
        (ValueError, (model, photos, output), {"shard": (0, 2), "distribution": "x"}, "must be None .* but 'x'"),
        (ValueError, (model, tmp_path / "empty", output), {}, "There are no images in .*empty"),
        (ValueError, (model, [], output), {}, "There are no images"),
        (ValueError, (model, [photos / "z.png", photos / "z.png"], output), {}, "z.png is given twice"),
        (TypeError, (model, None, output), {}, "images must be a folder, or a list of files"),
        (FileNotFoundError, (model, photos / "none", output), {}, "no file or folder .*none"),
        (FileNotFoundError, (model, photos, tmp_path / "no" / "x.npz"), {}, "no folder .* for x.npz"),
    ]:
        with pytest.raises(error, match=message):
            embed(*arguments, progress=False, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    hostile = tmp_path / os.fsdecode(b"\xff.png")
    hostile.write_bytes((photos / "z.png").read_bytes())
    with pytest.raises(ValueError, match=r"\\udcff.png is not valid UTF-8"):
        embed(model, [hostile], output, progress=False)


@pytest.mark.once
def test_features_that_are_not_finite(photos, tmp_path):
    model = make()
    model.get_layer("encoder_norm").gamma.assign(np.full(16, 1e6))
    with pytest.raises(ValueError, match="The features of a0.png are not finite in float16"):
        embed(model, photos, tmp_path / "x.npz", dtype="float16", progress=False)
    assert embed(model, photos, tmp_path / "y.npz", progress=False).count == 11


@pytest.mark.once
def test_only_one_process_writes_an_output(model, photos, tmp_path):
    from keras_vit._files import locked

    (tmp_path / "x.npz.unfinished").mkdir()
    with (
        locked(tmp_path / "x.npz.unfinished" / ".lock"),
        pytest.raises(RuntimeError, match="Another process is writing .*x.npz now"),
    ):
        embed(model, photos, tmp_path / "x.npz", progress=False)


@pytest.mark.once
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_clear_error(tmp_path):
    journal = embedding_files.Journal(tmp_path / "x.npz")
    journal.folder.mkdir()
    (journal.folder / "rows").symlink_to("/dev/full")
    with pytest.raises(OSError, match="rows cannot be written .No space left on device.. What was computed is kept"):
        journal.append(np.ones(1, bool), np.ones((1, 2), "f4"))


KILLED = """
import os, signal, sys
import keras
import keras_vit
from keras_vit.evaluation import embed, embedding_files

append = embedding_files.Journal.append
count = 0

def append_and_be_killed(self, readable, rows):
    global count
    count += 1
    append(self, readable, rows)
    if count == 2:
        size = os.path.getsize(self._file)
        os.truncate(self._file, size - 33)  # in the middle of writing
        os.kill(os.getpid(), signal.SIGKILL)

embedding_files.Journal.append = append_and_be_killed
embed(keras.saving.load_model(sys.argv[1]), sys.argv[2], sys.argv[3], batch_size=2)
"""


@pytest.mark.once
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_and_started_again(model, photos, tmp_path):
    whole = embed(model, photos, tmp_path / "whole.npz", batch_size=2, progress=False).path.read_bytes()
    model.save(tmp_path / "model.keras")
    output = tmp_path / "x.npz"
    for batches in (1, 2):
        arguments = [tmp_path / "model.keras", photos, output]
        done = subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)], env=environment(), timeout=120)
        assert done.returncode == -signal.SIGKILL and not output.exists()
        rows = output.with_name("x.npz.unfinished") / "rows"
        assert batches * (20 + 2 + 128) < rows.stat().st_size < (batches + 1) * (20 + 2 + 128)
    assert embed(model, photos, output, batch_size=2, progress=False).path.read_bytes() == whole


@pytest.mark.once
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    model = make(width=64, mlp_width=16, patch_size=2)
    pixels = np.zeros((16, 16, 3), "uint8")
    for i in range(300):
        Image.fromarray(pixels).save(tmp_path / f"{i:03}.png")
    files = sorted(tmp_path.glob("*.png"))
    peaks = []
    for count in (30, 30, 300):  # the first warms up
        tracemalloc.start()
        embed(model, files[:count], tmp_path / f"{len(peaks)}.npz", features="encoded", batch_size=10, progress=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # The last has 4.5 MB of features more. What grows are names, and garbage of Keras's that waits for its collection.
    assert peaks[2] - peaks[1] < 1e6 < 270 * 65 * 64 * 4 / 4
