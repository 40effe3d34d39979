"""Anomaly detection beside AnomalyDINO, anomalib's coreset and MVTec's evaluation, and its guarantee by simulation."""

import json
from contextlib import nullcontext

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import anomaly, export
from keras_vit.layers.anomaly import largest
from tests.conftest import GOLDEN
from tests.test_files import longest_file, posix

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:.*does not contain all settings")]
# In relation to the largest value: 1 - cosine is rounded to 1e-7, which is 2e-5 of distances of 0.005.
DISTANCES = 4e-5


def close(found, wanted, tolerance):
    wanted = np.asarray(wanted, "float64")
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.each
@pytest.mark.parametrize(
    "name", ["anomaly_dino", pytest.param("anomaly_dino_threshold", marks=pytest.mark.nightly_elsewhere)]
)
def test_as_anomalydino(name, golden, tmp_path):
    case, folder = golden(name), GOLDEN / name
    backbone = keras_vit.load(folder / "dinov2_vits14_pretrain.pth")
    rate = case.meta.get("false_alarms", 0.3)
    model = anomaly.fit(backbone, folder, **case.meta["options"], false_alarms=rate, verbose=False)
    close(model.bank, case.ref["bank"], 1e-5)
    scores, images = [], [folder / "test" / picture for picture in case.meta["pictures"]]
    for i, picture in enumerate(images):
        found = anomaly.detect(model, picture)
        scores.append(found.score)
        distances = model.with_distances.predict_on_batch(model.preprocess(picture))["distances"]
        close(distances[0], case.ref[f"distances_{i}"], DISTANCES)
        if f"map_{i}" in case.ref:
            close(found.map, case.ref[f"map_{i}"], DISTANCES)
    close(scores, case.ref["scores"], DISTANCES)
    if "threshold" in case.meta:
        close(model.good_scores, case.ref["good_scores"], DISTANCES)
        assert abs(model.threshold - case.meta["threshold"]) < DISTANCES and model.false_alarms == case.meta["rate"]
    figures = anomaly.evaluate(model, folder)
    for metric, value in case.meta["metrics"].items():  # of pixels, rounding changes the order of few among 46,080
        assert getattr(figures, metric) == pytest.approx(value, abs=2e-5), metric
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert (again.threshold, again.config) == (model.threshold, model.config)
    close(again.predict(model.preprocess(images), verbose=0)["score"], scores, DISTANCES)


def test_parts_as_the_originals(golden):
    for name in ("anomaly_coreset", "anomaly_coreset_ties"):
        case = golden(name)
        order = anomaly.greedy_coreset(case.ref["vectors"], case.meta["count"], case.meta["start"])
        np.testing.assert_array_equal(order, case.ref["order"])
    for name in ("anomaly_metrics_ties", "anomaly_metrics_regions"):
        ref = golden(name).ref
        found = anomaly.metrics(ref["scores"], ref["labels"], ref["maps"], ref["masks"])
        for metric, value in golden(name).meta["metrics"].items():  # the original's rates are float32
            assert getattr(found, metric) == pytest.approx(value, abs=1e-6), metric
    for name in ("anomaly_threshold", "anomaly_threshold_few", "anomaly_threshold_ties"):
        meta, scores = golden(name).meta, golden(name).ref["scores"]
        with pytest.warns(match="needs 99 good pictures, but there are 12") if meta["few"] else nullcontext():
            found = anomaly.conformal_threshold(scores, meta["false_alarms"])
        assert found == (meta["threshold"], meta["rate"])


@pytest.mark.each
@pytest.mark.parametrize("name", ["anomaly_foreground", "anomaly_foreground_flipped"])
def test_foreground_on_the_grid(name, golden):
    features, wanted = golden(name).ref["features"], golden(name).ref["mask_on_grid"]
    np.testing.assert_array_equal(anomaly.foreground_mask(features), wanted)
    # With more channels than patches, which are zeros, the smaller matrix is decomposed.
    wide = np.pad(features, ((0, 0), (0, 0), (0, 300)))
    np.testing.assert_array_equal(anomaly.foreground_mask(wide), wanted)


def test_the_threshold_is_counted_exactly():
    for count, share, k in [(149, 0.18, 123), (99, 0.29, 71), (99, 0.01, 99), (19, 0.05, 19), (9, 0.1, 9)]:
        assert anomaly.conformal_threshold(np.arange(1, count + 1), share) == (k, share)
    generator = np.random.default_rng(0)
    alarms = [generator.random() > anomaly.conformal_threshold(generator.random(19), 0.1)[0] for _ in range(4000)]
    assert abs(np.mean(alarms) - 0.1) < 4 * (0.1 * 0.9 / 4000) ** 0.5  # four standard errors


def test_metrics_beside_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(1)
    for steps in (3, 1000):  # many ties, or few
        scores, labels = generator.integers(0, steps, 200) / steps, generator.integers(0, 2, 200)
        found = anomaly.metrics(scores, labels)
        precision, recall, _ = sklearn.precision_recall_curve(labels, scores)
        f1 = np.nanmax(2 * precision * recall / np.maximum(precision + recall, 1e-12))
        wanted = sklearn.roc_auc_score(labels, scores), sklearn.average_precision_score(labels, scores), f1
        np.testing.assert_allclose((found.auroc, found.average_precision, found.f1_max), wanted, rtol=1e-12)


RNG = np.random.default_rng(2)
PICTURES = RNG.integers(60, 200, (1, 32, 32, 3)) + RNG.integers(-25, 25, (220, 32, 32, 3))


def pictures(count, first=0):
    return PICTURES[first : first + count].astype("uint8")


@pytest.fixture(scope="module")
def backbone():
    keras.utils.set_random_seed(0)
    sizes = {"image_size": 32, "patch_size": 4, "width": 32, "depth": 2, "heads": 2, "mlp_width": 64, "classes": 3}
    return keras_vit.VisionTransformer(keras_vit.ViTConfig(**sizes))


@pytest.fixture(scope="module")
def model(backbone):
    return anomaly.fit(backbone, pictures(20), image_size=32, false_alarms=0.1, verbose=False)


FORMATS = [("litert", {"target": "gpu"}), ("onnx", {"precision": "float16"})]
FORMATS += [("onnx", {}), ("litert", {"precision": "float16", "target": "gpu"}), ("openvino", {}), ("saved_model", {})]
FORMATS += [("openvino", {"precision": "float16"}), ("torch", {"batch_size": "any"}), ("stablehlo", {})]


# Where this process writes them, two are written each day.
EACH_DAY = 2 if keras.backend.backend() == "tensorflow" else 0
ROWS = [pytest.param(*row, marks=pytest.mark.nightly if i >= EACH_DAY else ()) for i, row in enumerate(FORMATS)]


@pytest.mark.each
@pytest.mark.parametrize(("name", "options"), ROWS)
def test_a_file_decides_as_the_model(name, options, model, tmp_path):
    images = model.preprocess(pictures(200, 20))
    scores = np.sort(model.predict(images, verbose=0)["score"])
    # Between the median and the next score that is far enough for float16: a hundred alarms, some of them close.
    i = 90 + int(np.diff(scores[90:110]).argmax())
    model = model.with_config(threshold=float(scores[i : i + 2].mean()), false_alarms=0.5)
    path = tmp_path / f"model{export.FORMATS[name].suffix}"
    report = export.export(model, path, name, images=images, measure=False, **options)
    assert (report.output, report.images) == ("is_anomalous, map, score", 200)
    about = json.loads((tmp_path / f"{path.name}.json").read_text())
    assert (about["threshold"], about["false_alarms"]) == (model.threshold, 0.5)
    assert about["preprocessing"]["resize"] == about["image_size"] == [32, 32]
    if name == "litert":
        assert not report.not_on_gpu
    if name == "onnx":  # the score near which float16 cannot decide
        close_by = model.with_config(threshold=float(np.nextafter(np.float32(scores[100]), np.float32(0))))
        with pytest.raises(RuntimeError, match="decides otherwise than the model on .*The first is image"):
            export.export(close_by, tmp_path / "other.onnx", precision="float16", images=images, measure=False)
        assert not [*tmp_path.glob("other*")]


def saved(folder, **images):
    Image = pytest.importorskip("PIL.Image")
    for name, pixels in images.items():
        path = folder / f"{name.replace('__', '/')}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def test_all_kinds_of_good_pictures(backbone, tmp_path, capsys):
    alpha = np.concatenate([pictures(1, 1)[0], np.full((32, 32, 1), 9, "uint8")], -1)
    saved(tmp_path, train__a=pictures(1)[0], train__b=alpha, train__c=pictures(1, 2)[0, ..., 0].astype("uint16") * 256)
    with pytest.warns(match="needs 19 good pictures, but there are 3"):
        model = anomaly.fit(backbone, tmp_path, image_size=32)
    scores = sorted(model.good_scores.round(4), reverse=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and f"{scores[0]:.4f}" in lines[0] and "train/" in lines[0]  # the names, the worst first
    options = {"image_size": 32, "false_alarms": 0.3, "verbose": False}
    grey = np.repeat((pictures(1, 2)[0, ..., :1]), 3, -1)
    same = [pictures(1)[0], pictures(1, 1)[0], grey]
    for source in (same, np.stack(same), [str(path) for path in sorted(tmp_path.glob("*/*"))], iter(same)):
        np.testing.assert_array_equal(anomaly.fit(backbone, source, **options).bank, model.bank)
    with pytest.warns(match="one picture, which cannot be compared"):
        alone = anomaly.fit(backbone, pictures(1), image_size=32)
    assert (alone.threshold, alone.false_alarms, len(alone.good_scores)) == (None, None, 0)
    found = anomaly.detect(alone, pictures(1, 5)[0])
    assert found.is_anomalous is None and found.map.shape == (32, 32)
    pytest.importorskip("matplotlib")
    anomaly.plot(found, pictures(1, 5)[0], tmp_path / "map.png")
    with pytest.warns(match=r"pictures twice: 'images\[0\]', 'images\[3\]'"):
        anomaly.fit(backbone, [*pictures(3), pictures(1)[0]], **options)


def test_options_of_fit(backbone):
    good, options = pictures(4), {"image_size": 32, "false_alarms": 0.3, "verbose": False}
    plain = anomaly.fit(backbone, good, **options)
    turned = anomaly.fit(backbone, good, rotations=True, **options)
    np.testing.assert_array_equal(turned.bank[:64], plain.bank[:64])  # of a picture, eight times 64 patches
    assert turned.bank.shape == (4 * 8 * 64, 32) and (turned.good_scores <= plain.good_scores + 1e-6).all()
    few = anomaly.fit(backbone, good, coreset=0.25, **options)
    first = anomaly.greedy_coreset(plain.bank[:64], 16)
    np.testing.assert_array_equal(few.bank[:16], plain.bank[first])
    assert (few.good_scores >= plain.good_scores - 1e-6).all()  # against fewer patches of the others
    x = pictures(1, 9)
    features = keras_vit.feature_extractor(plain.backbone, ["encoded"], layout="map")(plain.preprocess(x))["encoded"]
    flat = np.asarray(keras.ops.convert_to_numpy(features), "float64").reshape(64, 32)
    for metric in ("cosine", "L2"):
        model = anomaly.fit(backbone, good, neighbours=3, metric=metric, **options)
        own = flat / np.linalg.norm(flat, axis=1, keepdims=True) if metric == "cosine" else flat
        squares = np.sort(np.square(own[:, None] - model.bank[None]).sum(-1), 1)[:, :3].mean(1)
        wanted = squares / 2 if metric == "cosine" else np.sqrt(squares)
        close(model.with_distances.predict_on_batch(model.preprocess(x))["distances"][0].ravel(), wanted, DISTANCES)
    masked = anomaly.fit(backbone, good, masking=True, **options)  # these features are below 10: all is background
    assert masked.predict(masked.preprocess(x), verbose=0)["score"] == 0
    with pytest.raises(ValueError, match="masking=True, which no file can compute"):
        export.export(masked, "never.onnx")
    with pytest.raises(ValueError, match=r"Call keras_vit.anomaly.fit again"):
        plain.with_image_size(64)


@pytest.mark.each
@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_largest_values_with_ties(count):
    x = np.random.default_rng(0).integers(0, 4, (5, 12)).astype("float32")
    x[0], x[1] = 2, [5, 5, 1, *[0] * 9]
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(largest(keras.ops.convert_to_tensor(x), count)), -np.sort(-x)[:, :count]
    )


def test_good_scores_are_those_of_all_comparisons(backbone):
    """Most patches of a picture are compared with some of the others only."""
    options = {"image_size": 32, "verbose": False, "false_alarms": 0.1}
    for changes in ({}, {"neighbours": 3, "metric": "L2"}, {"coreset": 0.2}):
        model = anomaly.fit(backbone, pictures(20), **options, **changes)
        every = anomaly.fit(backbone, pictures(20), **options, **changes | {"coreset": None}).bank.astype("float64")
        banks, wanted = np.split(model.bank.astype("float64"), 20), []
        for i, x in enumerate(np.split(every, 20)):
            squares = np.square(x[:, None] - np.concatenate(banks[:i] + banks[i + 1 :])).sum(-1)
            means = np.sort(squares, 1)[:, : model.config.neighbours].mean(1)
            wanted.append(np.sqrt(means).max() if "metric" in changes else means.max() / 2)
        close(model.good_scores, wanted, DISTANCES)


@posix
def test_a_full_disk_leaves_the_detector_that_was_there(model, tmp_path):
    path = tmp_path / "detector.keras"
    model.save(path)
    before = path.read_bytes()
    with longest_file(2**12), pytest.raises(OSError, match=str(tmp_path)):
        model.save(path)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


REFUSED = {
    "another aspect ratio": (lambda: [*pictures(2), pictures(1)[0][:20]], r"images\[2\].*like the good pictures"),
    "NaN": (lambda: np.full((2, 32, 32, 3), np.nan), r"images\[0\] has NaN"),
    "no pictures": (lambda: iter(()), "at least one picture, but it has none"),
    "an empty coreset": (lambda: pictures(2), "coreset=0.001 of the 64 patches of a picture is none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case, backbone, tmp_path):
    source, message = REFUSED[case]
    options = {"coreset": 0.001} if case == "an empty coreset" else {}
    with pytest.raises(ValueError, match=message):
        anomaly.fit(backbone, source(), image_size=32, verbose=False, **options)


def test_folders_that_do_not_fit(model, backbone, tmp_path):
    with pytest.raises(ValueError, match="has none"):
        anomaly.fit(backbone, tmp_path)
    with pytest.raises(FileNotFoundError):
        anomaly.evaluate(model, tmp_path)
    black = np.zeros((32, 32), "uint8")
    saved(tmp_path, test__good__a=pictures(1)[0], test__cut__a=pictures(1)[0], ground_truth__cut__b_mask=black)
    with pytest.raises(ValueError, match="no partner: 'a', 'b'"):
        anomaly.evaluate(model, tmp_path)
    saved(tmp_path, test__cut__b=pictures(1, 30)[0], ground_truth__cut__a=black[:9])
    with pytest.raises(ValueError, match=r"has \(9, 32\) pixels, but its picture has \(32, 32\)"):
        anomaly.evaluate(model, tmp_path)
    saved(tmp_path, ground_truth__cut__a=black)
    with pytest.raises(ValueError, match="all 3 are of one class"):  # both masks are black: these pictures are good
        anomaly.evaluate(model, tmp_path)
    (tmp_path / "ground_truth").rename(tmp_path / "elsewhere")
    found = anomaly.evaluate(model, tmp_path)
    assert found.pictures == 3 and found.aupro is None
