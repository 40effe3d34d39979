"""Two towers beside transformers and open_clip, where these are installed: what they write, and what they read."""

import copy
import json
import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit.text import save_image_text

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore"),  # theirs
]
TOKENIZERS = {"clip": "txt_hf_clip", "siglip2": "txt_hf_siglip2", "siglip": "txt_bv_siglip"}
IMAGES = np.random.default_rng(0).normal(size=(3, 32, 32, 3)).astype("float32")
CHANNELS_FIRST = torch.from_numpy(IMAGES).permute(0, 3, 1, 2)
COSINE = 2e-5  # float32, two blocks, beside lengths of 1


def shaken(model):
    """The model with weights away from their first values, so that nothing is zero or the same."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def transformers_model(kind, **text):
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "intermediate_size": 96}
    vision = {"hidden_size": 48, "num_attention_heads": 3, "image_size": 32, "patch_size": 8, **sizes}
    if kind == "clip":
        text = {"vocab_size": 1714, "hidden_size": 32, "num_attention_heads": 2, "eos_token_id": 1713, **sizes, **text}
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
        return shaken(transformers.CLIPModel(config))
    text = {"vocab_size": 900, "hidden_size": 36, "num_attention_heads": 2, "projection_size": 48, **sizes, **text}
    return shaken(transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision)))


def transformers_ids(kind, folder, texts, context):
    import transformers

    options = {"padding": "max_length", "max_length": context, "truncation": True}
    if kind == "siglip":
        tokenizer = transformers.SiglipTokenizer(str(folder / "spiece.model"), pad_token="</s>", model_max_length=64)
        return np.array([tokenizer(text, **options)["input_ids"] for text in texts])
    tokenizer = transformers.AutoTokenizer if kind == "clip" else transformers.Siglip2Tokenizer
    return tokenizer.from_pretrained(folder)(texts, return_tensors="np", **options)["input_ids"]


@pytest.mark.parametrize(
    "kind, text",
    [
        ("clip", {}),
        ("clip", {"eos_token_id": 2, "bos_token_id": 0}),
        ("clip", {"hidden_act": "gelu"}),
        ("siglip", {}),
        ("siglip", {"max_position_embeddings": 16}),
        ("siglip2", {}),
    ],
)
def test_transformers(kind, text, golden, tmp_path):
    model, case = transformers_model(kind, **text), golden(TOKENIZERS[kind])
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "spiece.model"):
        if (case.folder / name).exists():
            shutil.copy(case.folder / name, tmp_path / name)
    both = keras_vit.load_image_text(tmp_path)
    texts = case.meta["texts"]
    ids = transformers_ids(kind, tmp_path, texts, both.text_encoder.config.context)
    np.testing.assert_array_equal(both.tokenizer(texts), ids)
    logits = both.logits(IMAGES, texts)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(ids), pixel_values=CHANNELS_FIRST).logits_per_image.numpy()
    assert np.abs(logits - expected).max() <= COSINE * both.scale
    save_image_text(both, tmp_path / "written")
    again = type(model).from_pretrained(tmp_path / "written").eval()
    with torch.no_grad():
        read = again(input_ids=torch.tensor(ids), pixel_values=CHANNELS_FIRST).logits_per_image.numpy()
    np.testing.assert_array_equal(read, expected)


VISION = {"image_size": 32, "layers": 2, "width": 48, "head_width": 16, "patch_size": 8, "mlp_ratio": 2.0}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
CUSTOM = {"custom_text": True}
WITH_BIAS = {"proj_bias": True, "no_causal_mask": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}}


@pytest.mark.parametrize(
    "model, text",
    [
        ({}, {}),
        ({"quick_gelu": True}, {}),
        ({"nonscalar_logit_scale": True}, {"mlp_ratio": 3.7}),
        ({}, {"context_length": 16}),
        ({}, {"tokenizer_kwargs": {"clean": "whitespace"}}),
        ({}, {"tokenizer_kwargs": {"clean": "canonicalize"}}),
        (CUSTOM, {}),
        (CUSTOM | {"init_logit_bias": -10}, WITH_BIAS | {"act_kwargs": {"approximate": "tanh"}}),
        (CUSTOM, {"pool_type": "first", "no_causal_mask": True}),
        (CUSTOM, {"pool_type": "eos", "eos_id": 49407}),
        (CUSTOM | {"embed_dim": 16}, {"proj_type": "none"}),
    ],
)
def test_open_clip(model, text, golden, tmp_path):
    open_clip = pytest.importorskip("open_clip")
    from safetensors.torch import save_file

    config = {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": TEXT | text} | model
    arguments = {name: value for name, value in copy.deepcopy(config).items() if name != "custom_text"}
    original = shaken((open_clip.CustomTextCLIP if "custom_text" in config else open_clip.CLIP)(**arguments))
    save_file(
        {name: t.contiguous() for name, t in original.state_dict().items()}, tmp_path / "open_clip_model.safetensors"
    )
    prepared = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": prepared}))
    both = keras_vit.load_image_text(tmp_path)
    texts = golden("txt_openclip").meta["texts"]
    options = config["text_cfg"].get("tokenizer_kwargs", {})
    ids = open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"], **options)(texts)
    np.testing.assert_array_equal(both.tokenizer(texts), ids.numpy())

    def answers(network):
        with torch.no_grad():
            return network.encode_image(CHANNELS_FIRST).numpy(), network.encode_text(ids).numpy()

    expected = answers(original)
    found = (
        tower.predict(x, verbose=0) for tower, x in ((both.image_encoder, IMAGES), (both.text_encoder, ids.numpy()))
    )
    for own, other in zip(found, expected, strict=True):
        assert np.abs(own - other).max() <= 1e-4 * other.std()
    save_image_text(both, tmp_path / "written", "clip")
    for own, other in zip(
        answers(open_clip.create_model(f"local-dir:{tmp_path / 'written'}").eval()), expected, strict=True
    ):
        np.testing.assert_array_equal(own, other)


SIGLIP = {"context_length": 64, "vocab_size": 900, "width": 48, "heads": 3, "layers": 2} | WITH_BIAS
SIGLIP["hf_tokenizer_name"] = "of another repository"
