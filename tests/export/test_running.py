"""The process that runs a file, what is compared, and the command line."""

import contextlib
import json

import numpy as np
import pytest

from keras_vit.cli import main
from keras_vit.export.exporting import differences
from keras_vit.export.served_model import labelled_pictures
from tests.export.tiny import CONFIG, NAMES, fake_export, shared_model
from tests.small_models import small_depth_model

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("behind", "error", "changed", "tolerance", "words"),
    [
        (0.6, 0, 100, None, "names another class than the model for 100% of the images"),
        (2.0, 0, 6, 0.3, "6% of the images"),
        (2.0, 0, 5, 0.3, None),
        (0.4, 0, 20, None, None),  # the model itself hardly tells the two apart
        (0.4, 0, 21, None, "for 21% of the images, where 5% may change, and 20% where the model is undecided"),
        (0.1, 2.5, 100, None, "does not return the outputs"),
        (0.1, np.nan, 100, None, "does not return the outputs"),
        (0.1, 2.5, 20, 0.3, None),
    ],
)
def test_what_may_differ(behind, error, changed, tolerance, words):
    """A file names the model's second class for some of 100 images whose best leads by `behind`; size: 10."""
    expected = np.tile([10.0, 10.0 - behind, 0.0], (100, 1))
    answers = expected.copy()
    answers[:changed] = answers[:changed, [1, 0, 2]]
    with pytest.raises(RuntimeError, match=words) if words else contextlib.nullcontext():
        found = differences([answers + error], [expected], True, "litert", "int8", tolerance)
        assert found["tolerance"] == pytest.approx(2.0 if tolerance is None else 3.0)


@pytest.fixture
def pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for index, name in enumerate(("drei", "eins", "zwei")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((20, 20, 3), 20 * index + number, "uint8")
            pixels[10:] = 200
            image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.png")
    return tmp_path / "data"


def test_pictures_in_folders(pictures):
    images, labels = labelled_pictures(pictures, shared_model(), NAMES)
    assert images.shape == (9, 8, 12, 3) and images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == [0, 1, 2, 20, 21, 22, 40, 41, 42]
    assert labels.tolist() == [3, 3, 3, 1, 1, 1, 2, 2, 2]
    three = shared_model(CONFIG.replace(classes=3))
    assert labelled_pictures(pictures, three, None)[1].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert labelled_pictures(pictures / "drei", shared_model(), NAMES)[1] is None
    for other in (shared_model(CONFIG.replace(classes=None)), small_depth_model()):  # no class for an image
        images, labels = labelled_pictures(pictures, other, None)
        assert len(images) == 9 and labels is None
    (pictures / "vier").mkdir()
    with pytest.raises(ValueError, match="no pictures"):
        labelled_pictures(pictures / "vier", shared_model(), NAMES)
    with pytest.raises(FileNotFoundError, match="folder of pictures .*fünf does not exist"):
        labelled_pictures(pictures / "fünf", shared_model(), NAMES)

    # As many folders as classes, but of other names: an accuracy on them would mean nothing.
    with pytest.raises(ValueError, match="(?s)classes that the model does not have.*drei.*cat"):
        labelled_pictures(pictures, three, ["eins", "zwei", "cat"])
    with pytest.raises(ValueError, match="3 folders.*5 classes"):  # nobody knows which class is which
        labelled_pictures(pictures, shared_model(), None)


def test_the_command(monkeypatch, capsys, tmp_path, pictures):
    fake_export(monkeypatch)
    shared_model().save(tmp_path / "model.keras")
    (tmp_path / "names.txt").write_text("\n".join(NAMES), encoding="utf-8")
    arguments = ["export", tmp_path / "model.keras", tmp_path / "model.tflite", "--uint8", "--softmax", "--batch-size"]
    arguments += [3, "--precision", "int8", "--calibration", pictures, "--images", pictures, "--json"]
    arguments = [str(argument) for argument in [*arguments, "--classes", tmp_path / "names.txt"]]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["precision"], report["batch"], report["images"]) == ("litert", "int8", 3, 9)
    assert report["accuracy"] == report["model_accuracy"] is not None
    assert len(fake_export.calibration) == 9
    metadata = fake_export.job.metadata
    assert (metadata["class_names"], metadata["source"]) == (NAMES, "model.keras")
    assert main(arguments) == 1
    assert "exists. Choose another path or pass --overwrite." in capsys.readouterr().err
    assert main([*arguments[:3], "--overwrite", "--image-size", "16"]) == 0
    assert "litert, float32" in capsys.readouterr().out
    assert fake_export.job.signature.shape == (1, 16, 16, 3)
    assert main([*arguments[:3], "--overwrite", "--image-size", "16", "--batch-size", "any"]) == 0
    assert fake_export.job.signature.shape == (None, 16, 16, 3) and not fake_export.job.signature.float16
    assert main([*arguments[:3], "--overwrite", "--image-size", "16", "--target", "gpu"]) == 0
    assert fake_export.job.signature.float16
