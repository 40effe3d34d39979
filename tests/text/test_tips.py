"""Both towers of TIPS: the numbers of transformers and ids by both rules, pairs of files, and what is refused."""

import json
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.text import ImageText, save_image_text
from tests.checkpoints.test_tips import AUTHORS, CASE, SCENIC, arrays_of, drawn, near
from tests.layers import in_numpy
from tests.small_models import model_of, values_of

pytestmark = [pytest.mark.filterwarnings("ignore:.*texts are longer than"), pytest.mark.once]
TEXTS = {
    **{"vocabulary": 600, "context": 64, "width": 64, "depth": 2, "heads": 1, "mlp_width": 96},
    **{"gelu": "relu", "pooling": "mean", "position_embedding": "sincos", "pad_id": 0},
}
EPSILON = {"tips": 1e-5, "tips_scenic": 1e-6}
TEMPERATURE = float(np.float32(0.0063324603))


@pytest.fixture(scope="module")
def both(golden):
    return keras_vit.load_image_text(golden(CASE).folder)


def pair(layout, **texts):
    tower = model_of(keras_vit.TextConfig(**TEXTS | {"layer_norm_epsilon": EPSILON[layout]} | texts))
    images = drawn(**(AUTHORS if layout == "tips" else SCENIC))
    return ImageText(images, tower, scale=1 / TEMPERATURE, temperature=TEMPERATURE)


@pytest.mark.each
def test_the_numbers_of_transformers(golden, both):
    case, ref = golden(CASE), golden(CASE).ref
    np.testing.assert_array_equal(both.tokenizer(case.meta["texts"]), ref["ids"])
    assert near(both.text_encoder.predict(ref["ids"], verbose=0), ref["text_embedding"])
    assert near(both.logits(ref["images"], case.meta["texts"]), ref["logits"])
    rows = keras.ops.convert_to_numpy(both((ref["images"], ref["ids"])))
    assert near(rows, ref["logits"]) and both.activation == "softmax"
    model = both.zero_shot_classifier(case.meta["class_names"], case.meta["templates"], progress=False)
    assert near(model.predict(ref["images"], verbose=0), ref["zero_shot_logits"])


def test_the_authors_lower_a_to_z_only(golden):
    for folder in (None, golden(CASE).folder):
        official = keras_vit.load_image_text(golden(CASE).folder, numerics="official", tokenizer=folder)
        ids = official.tokenizer(golden(CASE).meta["texts"])
        np.testing.assert_array_equal(ids, golden(CASE).ref["ids_authors"])
    assert (ids != golden(CASE).ref["ids"]).any()


@pytest.mark.each
@pytest.mark.nightly_elsewhere
def test_padding_is_seen_by_nothing(golden, both):
    ids = golden(CASE).ref["ids"][:6]
    before = both.text_encoder.predict(ids, verbose=0)
    assert not before[5].any()  # of a text without any token
    tower = keras_vit.TextEncoder(both.text_encoder.config)
    tower.set_weights(both.text_encoder.get_weights())
    table = tower.get_layer("token_embedding").embeddings
    table.assign(keras.ops.concatenate([keras.ops.ones_like(table[:1]) * 9, table[1:]]))
    np.testing.assert_array_equal(tower.predict(ids, verbose=0)[:5], before[:5])


def test_transformers_files_come_back_bit_for_bit(golden, both, tmp_path):
    save_image_text(both, tmp_path)
    written = arrays_of(tmp_path)
    arrays = arrays_of(golden(CASE).folder)
    assert written.keys() == arrays.keys()
    for name in arrays.keys() - {"vision_encoder.mask_token"}:
        np.testing.assert_array_equal(written[name], arrays[name])
    again = keras_vit.load_image_text(tmp_path)
    assert again.text_encoder.config == both.text_encoder.config
    np.testing.assert_array_equal(again.tokenizer(["a Cat"]), both.tokenizer(["a Cat"]))


@pytest.mark.parametrize("layout", EPSILON)
def test_a_pair_of_files(golden, layout, tmp_path):
    both = pair(layout)
    save_image_text(both, tmp_path, layout)
    shutil.copy(golden(CASE).folder / "tokenizer.model", tmp_path)
    again = keras_vit.load_image_text(tmp_path)
    assert again.text_encoder.config == both.text_encoder.config
    assert again.image_encoder.config == both.image_encoder.config
    for old, new in zip(both.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    texts = golden(CASE).meta["texts"]
    np.testing.assert_array_equal(again.tokenizer(texts), golden(CASE).ref["ids_authors"])
    name = "temperature" if layout == "tips" else "temperature_contrastive"
    assert arrays_of(tmp_path / "tips_text.npz")[name] == np.float32(TEMPERATURE)
    save_image_text(again, tmp_path / "again", layout)
    for file in ("tips_vision.npz", "tips_text.npz"):
        first, second = arrays_of(tmp_path / file), arrays_of(tmp_path / "again" / file)
        assert first.keys() == second.keys()
        assert all(np.array_equal(array, second[key]) for key, array in first.items())
    assert (tmp_path / "again" / "tokenizer.model").is_file()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_image_text(again, tmp_path, layout)


def test_the_name_of_a_temperature_comes_back(tmp_path):
    """The authors' files of PyTorch have one or the other."""
    save_image_text(pair("tips"), tmp_path, "tips")
    arrays = arrays_of(tmp_path / "tips_text.npz")
    arrays["temperature_contrastive"] = arrays.pop("temperature")
    np.savez(tmp_path / "tips_text.npz", **arrays)
    again = keras_vit.load_image_text(tmp_path)
    for both in (again, type(again).from_config(again.get_config())):
        save_image_text(both, tmp_path / "again", "tips", overwrite=True)
        assert arrays_of(tmp_path / "again" / "tips_text.npz").keys() == arrays.keys()


@pytest.fixture
def config(golden, tmp_path):
    """What config.json says in a copy of transformers' files, whose temperature it alone has."""
    shutil.copytree(golden(CASE).folder, tmp_path, dirs_exist_ok=True)
    arrays = {name: array for name, array in arrays_of(tmp_path).items() if name != "temperature"}
    keras_vit.checkpoints.files.write_safetensors(tmp_path / "model.safetensors", arrays.items(), overwrite=True)
    return json.loads((tmp_path / "config.json").read_text())


def test_the_temperature_in_config_json_and_one_that_was_trained(config, tmp_path):
    again = keras_vit.load_image_text(tmp_path)
    assert again.scale == pytest.approx(1 / config["temperature_init_value"], rel=1e-6)
    again.log_scale.assign(np.log(50.0))
    save_image_text(again, tmp_path / "trained")
    assert arrays_of(tmp_path / "trained")["temperature"] == pytest.approx(0.02, rel=1e-6)


@pytest.mark.parametrize("value", [1e39, 1e-50, -1, "warm"])
def test_a_temperature_in_config_json_that_no_float32_holds(config, tmp_path, value):
    (tmp_path / "config.json").write_text(json.dumps(config | {"temperature_init_value": value}))
    with pytest.raises(ValueError, match=f"temperature_init_value .*{tmp_path.name}|{tmp_path.name}.*init_value"):
        keras_vit.load_image_text(tmp_path)


@pytest.mark.parametrize("layout", EPSILON)
def test_the_formulas_by_hand(layout):
    """Both towers of the file's arrays in float64: what reading and writing share would else not show."""
    both = pair(layout)
    ids = np.array([[5, 7, 9, 11, 0, 0] + [0] * 58, [3] * 64])
    weights = {path: np.float64(values) for path, values in values_of(both.text_encoder).items()}
    assert near(both.text_encoder.predict(ids, verbose=0), text_by_hand(weights, ids, EPSILON[layout]))


def text_by_hand(weights, ids, epsilon):
    """Each text by itself, without its padding."""
    rows = []
    for row in ids:
        tokens = weights["token_embedding/embeddings"][row[row != 0]]
        width = tokens.shape[1]
        angles = np.arange(len(tokens))[:, None] / 10_000 ** (np.arange(width // 2) / (width / 2 - 1))
        x = (tokens * width**0.5 + np.concatenate([np.sin(angles), np.cos(angles)], axis=1))[None]
        for i in range(2):
            x = in_numpy.block(x, in_numpy.inner(weights, f"block_{i}"), 1, "relu", epsilon)
        rows.append(in_numpy.layer_norm(x, weights, "encoder_norm", epsilon)[0].mean(0))
    return np.stack(rows)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act .* must be 'relu', but is gelu"),
        ({"scale_sqrt_depth": False}, "scale_sqrt_depth .* but is False"),
        ({"pad_token_id": 1}, "pad_token_id .* but is 1"),
        ({"vocab_size": 9}, "vocab_size .* but is 9"),
    ],
)
def test_texts_that_are_not_computed(config, tmp_path, metadata, message):
    config["text_config"] |= metadata
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        keras_vit.load_image_text(tmp_path)


@pytest.mark.parametrize(
    ("layout", "texts", "message"),
    [
        ("tips", {"heads": 2}, "store a text tower with heads=2"),
        ("tips", {"context": 32}, "store a text tower with context=32"),
        ("tips", {"pooling": "last"}, "store a text tower with pooling='last'"),
        ("tips_scenic", {"layer_norm_epsilon": 1e-5}, "store a text tower with layer_norm_epsilon=1e-05"),
    ],
)
def test_towers_that_a_layout_has_no_place_for(tmp_path, layout, texts, message):
    with pytest.raises(ValueError, match=message):
        save_image_text(pair(layout, **texts), tmp_path, layout)
