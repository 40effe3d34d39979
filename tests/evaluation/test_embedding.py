"""Features of many images in one file: what is in it, and that nothing of it is lost or doubled."""

import dataclasses
import os
import shutil
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit._processes import Processes
from keras_vit.evaluation import embed, embedding
from tests.compute import forward
from tests.pictures import save
from tests.small_models import small_bit, small_vit
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.once
Image = pytest.importorskip("PIL.Image")
PIPELINE = {"resize": "shortest", "crop_ratio": 0.8, "filter": "bicubic", "pixel_mean": (0.1, 0.5, 0.6)}
NAMES = [*[f"a{n}.png" for n in range(8)], "b/c/1.png", "b/ü.png", "z.png"]
QUIET = {"progress": False}


def make(seed=0, **fields):
    return small_vit(seed, **{"image_size": 16, "patch_size": 8, "width": 16} | PIPELINE | fields)


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Eleven images in folders, of several sizes."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i, place in enumerate(["z", "b/ü", "b/c/1", *[f"a{n}" for n in range(8)]]):
        save(folder / f"{place}.png", rng.integers(0, 256, (20 + i, 31 - i, 3), dtype="uint8"))
    return folder


def read(path):
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.fixture
def stopped(monkeypatch):
    """A function that embeds and is stopped after some batches; gives the folder that is left to go on from."""

    def stop(batches, model, images, output, **options):
        append, left = embedding._Part.append, iter(range(batches))

        def append_or_stop(*args):
            if next(left, None) is None:
                raise KeyboardInterrupt
            append(*args)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(embedding._Part, "append", append_or_stop)
            embed(model, images, output, **options)
        return output.with_name(f"{output.name}.unfinished")

    return stop


@pytest.mark.parametrize("kind", ["vit", "dynamic", "preprocessing", "bit"])
def test_features_are_those_of_the_extractor_on_the_preprocessed_images(kind, photos, tmp_path):
    if kind == "bit":
        model = small_bit(image_size=32, stages=(1, 1))
    else:
        model = make(**{"dynamic": {"dynamic": True}, "preprocessing": {"include_preprocessing": True}}.get(kind, {}))
    name = {"dynamic": "block_-1", "bit": "stage_2"}.get(kind, "pre_logits")
    done = embed(model, photos, tmp_path / "x.npz", features=name, batch_size=4, **QUIET)
    assert list(tmp_path.iterdir()) == [tmp_path / "x.npz"]
    file = read(done.path)
    assert file["names"].tolist() == NAMES and file["skipped"].tolist() == []
    images = np.concatenate([model.preprocess(keras_vit.load_image(photos / name)) for name in NAMES])
    wanted = forward(keras_vit.feature_extractor(model, [name]), images)[name]
    assert file["features"].dtype == np.float32 and file["features"].shape == (11, *done.shape) == wanted.shape
    # A batch of another size is summed up in another order; sums err by the size of what they are of.
    atol = SAME_FUNCTION * max(1, np.abs(wanted).max())
    np.testing.assert_allclose(file["features"], wanted, rtol=0, atol=atol)


def test_shards_are_slices(model, photos, tmp_path):
    options = {"batch_size": 2, **QUIET}
    whole = read(embed(model, photos, tmp_path / "whole.npz", **options).path)
    parts = [embed(model, photos, tmp_path / f"{i}.npz", shard=(i, 8), **options) for i in range(8)]
    assert sorted(part.count for part in parts) == [0, 0, 1, 2, 2, 2, 2, 2]  # more shards than the 6 batches
    for name in ("names", "features"):
        np.testing.assert_array_equal(np.concatenate([read(part.path)[name] for part in parts]), whole[name])
    path = tmp_path / os.fsdecode(b"\xff.png")  # a name that is not UTF-8
    path.write_bytes((photos / "z.png").read_bytes())
    assert read(embed(model, [path], tmp_path / "x.npz", **QUIET).path)["names"].tolist() == [path.as_posix()]


def test_what_is_complete_is_not_made_again_but_replaced_images_are(model, photos, tmp_path):
    folder, output = tmp_path / "photos", tmp_path / "x.npz"
    shutil.copytree(photos / "b", folder)
    Image.open(photos / "a0.png").convert("RGB").save(folder / "a0.bmp")
    done = embed(model, folder, output, **QUIET)
    written = output.stat().st_mtime_ns
    assert embed(model, folder, output, **QUIET) == dataclasses.replace(done, already_complete=True)
    assert not done.already_complete and done.count == 3 and output.stat().st_mtime_ns == written
    # Another image of the same size in bytes.
    Image.fromarray(255 - np.asarray(Image.open(folder / "a0.bmp"))).save(folder / "a0.bmp")
    with pytest.raises(ValueError, match=r"x.npz has features of other settings: different images"):
        embed(model, folder, output, **QUIET)
    assert not embed(model, folder, output, overwrite=True, **QUIET).already_complete


def test_a_run_that_was_stopped_anywhere_ends_with_the_same_bytes(model, photos, tmp_path, stopped, monkeypatch):
    options = {"batch_size": 4, **QUIET}
    whole = embed(model, photos, tmp_path / "whole.npz", **options).path.read_bytes()
    output, read_names = tmp_path / "x.npz", []
    preprocess = model.preprocess
    monkeypatch.setattr(model, "preprocess", lambda path: read_names.append(path.name) or preprocess(path))
    for batches, left in ((0, b""), (1, b""), (2, b""), (1, bytes(50))):  # bytes of a batch that was not noted
        folder = stopped(batches, model, photos, output, **options)
        with (folder / "part.features").open("ab") as file:
            file.write(left)
        read_names.clear()
        embed(model, photos, output, **options)
        assert sorted(read_names) == sorted(Path(name).name for name in NAMES[4 * batches :])  # threads read them
        assert output.read_bytes() == whole and not folder.exists()
        output.unlink()


def test_features_of_something_else_are_refused(model, photos, tmp_path, stopped):
    output = tmp_path / "x.npz"
    stopped(1, model, photos, output, batch_size=4)
    files = sorted(photos.rglob("*.png"))
    for arguments, options, message in [
        ((make(1), photos), {}, "different model"),
        ((model, files[:-1]), {}, "different images; count is 11, not 10"),
        ((model, photos), {"features": "encoded"}, "features is 'pre_logits', not 'encoded'"),
        ((model, photos), {"dtype": "float16"}, "dtype is 'float32', not 'float16'"),
        ((model, photos), {"shard": (0, 2)}, "range is"),
    ]:
        with pytest.raises(ValueError, match=f"x.npz.unfinished has features of other settings: {message}"):
            embed(*arguments, output, batch_size=4, **QUIET, **options)
    parts = [output.with_name("x.npz.unfinished") / f"part.{kind}" for kind in ("json", "features")]
    rows = parts[1].read_bytes()
    for path, content in ((parts[1], rows[:-1]), *((parts[0], text) for text in (b"[]", b"{}", b"\xff", b"{"))):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="part.json is damaged.* or pass overwrite=True"):
            embed(model, photos, output, batch_size=4, **QUIET)
    embed(model, photos, output, batch_size=4, dtype="float16", overwrite=True, **QUIET)
    assert read(output)["features"].dtype == np.float16
    with pytest.raises(ValueError, match="x.npz has features of other settings: dtype is 'float16', not 'float32'"):
        embed(model, photos, output, **QUIET)
    for content in (b"", b"something else", output.read_bytes()[:500]):
        output.write_bytes(content)
        with pytest.raises(ValueError, match=r"x.npz is damaged, or was not written by evaluation.embed"):
            embed(model, photos, output, **QUIET)
        assert output.read_bytes() == content


def test_each_of_several_processes_writes_its_slice(model, photos, tmp_path, monkeypatch):
    """Without a word to the others: a file each, whose rows in their order are those of one process."""
    whole = read(embed(model, photos, tmp_path / "whole.npz", batch_size=4, **QUIET).path)
    files = []
    for index in range(2):
        monkeypatch.setattr(embedding, "connect", lambda distribution, index=index: Processes(index, 2))
        files.append(read(embed(model, photos, tmp_path / "x.npz", batch_size=4, **QUIET).path))
        assert (tmp_path / f"x-{index}-of-2.npz").is_file()
    for name in ("names", "features"):
        np.testing.assert_array_equal(np.concatenate([file[name] for file in files]), whole[name])
    with pytest.raises(ValueError, match=r"x-1-of-2.npz has .* range is \[4, 11\], not \[6, 11\]"):
        embed(model, photos, tmp_path / "x.npz", batch_size=2, **QUIET)


def test_files_that_are_no_images(model, photos, tmp_path):
    bad, output = tmp_path / "bad", tmp_path / "x.npz"
    bad.mkdir()
    for name in ("a0.png", "a1.png"):
        (bad / name).write_bytes((photos / name).read_bytes())
    (bad / "a1.jpg").write_bytes(b"\xff\xd8 no image")
    (bad / "empty.png").touch()
    (bad / "link.png").symlink_to("gone.png")
    (bad / "notes.txt").write_text("a text")
    with (
        pytest.warns(UserWarning, match="1 files without the suffix of an image are left out: .*notes.txt"),
        pytest.raises(ValueError, match='a1.jpg cannot be read: .*on_bad_image="skip"'),
    ):
        embed(model, bad, output, **QUIET)
    (bad / "notes.txt").unlink()
    with pytest.warns(UserWarning, match=r"(a1.jpg|empty.png|link.png) is left out"):
        done = embed(model, bad, output, on_bad_image="skip", **QUIET)
    file = read(output)
    assert file["names"].tolist() == ["a0.png", "a1.png"] and done.count == 2
    assert file["skipped"].tolist() == ["a1.jpg", "empty.png", "link.png"] == [*done.skipped]
    good = embed(model, [bad / "a0.png", bad / "a1.png"], tmp_path / "good.npz", **QUIET)
    np.testing.assert_allclose(file["features"], read(good.path)["features"], rtol=1e-5, atol=SAME_FUNCTION)
    with pytest.raises(ValueError, match="x.npz .*: 'a1.jpg', 'empty.png', 'link.png' could not be read"):
        embed(model, bad, output, **QUIET)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="None of the 1 images can be read"):
        embed(model, [bad / "a1.jpg"], tmp_path / "none.npz", on_bad_image="skip", **QUIET)


def test_features_that_overflow(photos, tmp_path):
    output = tmp_path / "x.npz"
    overflowing = make()
    overflowing.get_layer("encoder_norm").gamma.assign(np.full(16, 1e6))
    with pytest.raises(ValueError, match="The features of a0.png are not finite in float16"):
        embed(overflowing, photos, output, dtype="float16", **QUIET)


def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    model = make(width=128, mlp_width=16, patch_size=2)
    for i in range(120):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{i:03}.png")
    files = sorted(tmp_path.glob("*.png"))
    peaks = []
    for count in (20, 20, 120):  # the first warms up
        tracemalloc.start()
        embed(model, files[:count], tmp_path / f"{len(peaks)}.npz", features="encoded", batch_size=10, **QUIET)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # The last has 3.3 MB of features more. What grows are names, and garbage of Keras's that waits for its collection.
    assert peaks[2] - peaks[1] < 100 * 65 * 128 * 4 / 4


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_a_full_disk_is_one_clear_error(model, photos, tmp_path):
    """A limit on the size of files stands for it; Python ignores its signal, so that the write fails."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="unfinished cannot be written .File too large.. Computed features are kept"):
            embed(model, photos, tmp_path / "x.npz", **QUIET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert embed(model, photos, tmp_path / "x.npz", **QUIET).count == 11
