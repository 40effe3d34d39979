"""Threads that read a model while another one predicts, and files of Keras, which take their place when whole."""

import os
import threading

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.text import ImageText
from tests.small_models import images_for, small_bit, small_eomt, small_text_encoder, small_vit

READERS = {
    "call": lambda model, x, folder: keras.ops.convert_to_numpy(model(x)),
    "save": lambda model, x, folder: model.save(folder / "a.keras"),
    "to_checkpoint": lambda model, x, folder: keras_vit.to_checkpoint(model, folder / "a.npz", overwrite=True),
    "with_config": lambda model, x, folder: model.with_config(dropout=0.1),
    "rollout": lambda model, x, folder: keras_vit.inspection.attention_rollout(model, x),
    "predict": lambda model, x, folder: model.predict(x, verbose=0),
}


def flat(answers):
    return np.concatenate([np.ravel(answer) for answer in keras.tree.flatten(answers)])


@pytest.fixture
def predicting():

    def run(model, images, read, times=6):
        expected, ended, wrong, begun = flat(model.predict(images, verbose=0)), threading.Event(), [], threading.Event()

        def predict():
            try:
                while not ended.is_set():
                    begun.set()
                    found = flat(model.predict(images, batch_size=1, verbose=0))
                    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
            except BaseException as error:
                wrong.append(error)

        thread = threading.Thread(target=predict)
        model.predict(images[:1], verbose=0)
        thread.start()
        begun.wait()
        try:
            answers = [read() for _ in range(times)]
        finally:
            ended.set()
            thread.join()
        assert not wrong, wrong[0]
        return answers

    return run


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("reader", READERS)
def test_a_model_is_read_while_a_thread_predicts(reader, predicting, tmp_path):
    model = small_vit()
    images = images_for(model.config, 24)
    read = READERS[reader]
    before = read(model, images, tmp_path)
    answers = predicting(model, images, lambda: read(model, images, tmp_path))
    if reader in ("call", "predict", "rollout"):
        for answer in answers:
            np.testing.assert_allclose(answer, before, rtol=1e-5, atol=1e-6)
    for path in tmp_path.iterdir():
        if path.suffix in (".keras", ".npz"):
            wanted = model.predict(images, verbose=0)
            np.testing.assert_allclose(keras_vit.load(path).predict(images, verbose=0), wanted, 1e-5)
    assert not [*tmp_path.glob(".part-*")]


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("make", [small_bit, small_eomt])
def test_other_kinds_are_read_while_a_thread_predicts(make, predicting, tmp_path):
    model = make()
    predicting(model, images_for(model.config, 12), lambda: (model.save(tmp_path / "a.keras"), model.get_weights()))


MODELS = {
    "image": small_vit,
    "text": small_text_encoder,
    "pair": lambda: ImageText(small_vit(classes=None), small_text_encoder(), name="pair"),
}


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("kind", MODELS)
def test_a_file_that_cannot_be_written_leaves_the_good_one(kind, tmp_path, monkeypatch):
    """Also as it was: what a link points to, and who may read it."""
    model = MODELS[kind]()
    for name, write in (("a.keras", model.save), ("a.weights.h5", model.save_weights), ("b.keras", model.save)):
        path = link = tmp_path / name
        write(path)
        if name == "b.keras":
            link = tmp_path / "link.keras"
            link.symlink_to(path)
        os.chmod(path, 0o600)
        good = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(type(model.weights[0]), "value", property(lambda self: 1 / 0))
            with pytest.raises(ZeroDivisionError):
                write(link, overwrite=True)
        assert path.read_bytes() == good
        write(link, overwrite=True)
        assert link.is_symlink() == (name == "b.keras") and path.stat().st_mode & 0o777 == 0o600
    assert not [*tmp_path.glob(".part-*")]
    with pytest.raises(FileNotFoundError):
        model.save(tmp_path / "none" / "a.keras")
