"""EoMT beside transformers and timm, where these are installed: what they write and what they read."""

import importlib
import re

import numpy as np
import pytest

import keras_vit
from keras_vit.preprocessing import Pipeline
from keras_vit.segmentation import segment, segmenting
from tests.checkpoints.test_pictures_interop import COUNT, ROUNDING, pictures

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore"),  # theirs
]
SIDE = 84
IMAGES = np.random.default_rng(0).normal(size=(2, SIDE, SIDE, 3)).astype("float32")
PARTS = np.random.default_rng(1).integers(0, 256, (9, 12, 3)).astype("uint8")
PICTURE = np.kron(PARTS, np.ones((9, 11, 1), "uint8"))  # 81 x 132
LOGITS = 2e-6  # of their range: float32 through three blocks
SCORE = 2e-6  # transformers rounds to six digits


def shaken(model):
    """The model with weights of no special value, sure of its classes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def of_transformers(kind, **changes):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 1, "image_size": SIDE, "patch_size": 14}
    head = {"num_blocks": 2, "num_queries": 9, "num_upscale_blocks": 1, "num_labels": 5}
    own = {"mlp_ratio": 2} if kind == "Eomt" else {"intermediate_size": 80}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **head, **own, **changes})
    model = shaken(getattr(transformers, f"{kind}ForUniversalSegmentation")(config))
    with torch.no_grad():
        model.attn_mask_probs.zero_()
        model.class_predictor.weight.mul_(6)
        model.mask_head.fc3.weight.mul_(3)
    return model


def same_logits(ours, theirs):
    answers = ours.predict(IMAGES, verbose=0)
    for name, wanted in zip(("masks", "classes"), theirs, strict=True):
        assert np.abs(answers[name] - wanted.numpy()).max() <= LOGITS * np.ptp(wanted.numpy())


def logits_of(model):
    with torch.no_grad():
        answers = model(torch.from_numpy(IMAGES).permute(0, 3, 1, 2))
    return answers.masks_queries_logits, answers.class_queries_logits


@pytest.mark.parametrize(
    "kind, changes",
    [
        ("Eomt", {}),
        ("Eomt", {"num_register_tokens": 0, "hidden_act": "quick_gelu"}),
        ("Eomt", {"use_swiglu_ffn": True, "layer_norm_eps": 1e-5, "num_blocks": 3}),
        ("EomtDinov3", {}),
        ("EomtDinov3", {"use_gated_mlp": True, "hidden_act": "silu", "layer_norm_eps": 1e-5}),
    ],
)
def test_read_from_and_written_for_transformers(kind, changes, tmp_path):
    theirs = of_transformers(kind, **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = keras_vit.load(tmp_path / "theirs")
    same_logits(ours, logits_of(theirs))
    keras_vit.to_checkpoint(ours, tmp_path / "ours")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    for answers, wanted in zip(logits_of(again), logits_of(theirs), strict=True):
        torch.testing.assert_close(answers, wanted, rtol=0, atol=2e-5)  # GELU's tanh is spelled in two ways


@pytest.mark.parametrize("task", ["semantic", "panoptic", "instance"])
def test_from_the_picture_to_segments(task, tmp_path, monkeypatch):
    """With the class that resizes by Pillow: torchvision, whose grey levels are the default, is not installed."""
    pillow = lambda pixels, size, like: Pipeline(size, filter="bilinear_pillow").resized(pixels)[0]  # noqa: E731
    monkeypatch.setattr(segmenting, "resized", pillow)
    eomt = pytest.importorskip("transformers.models.eomt.image_processing_pil_eomt")
    whole = task == "semantic"
    size = {"shortest_edge": SIDE, "longest_edge": None if whole else SIDE}
    processor = eomt.EomtImageProcessorPil(do_split_image=whole, do_pad=not whole, size=size)
    theirs = of_transformers("Eomt")
    for part in (theirs, processor):
        part.save_pretrained(tmp_path)
    ours = keras_vit.load(tmp_path)
    inputs = processor(images=[PICTURE], return_tensors="pt")
    with torch.no_grad():
        answers = theirs(**inputs)
    read = getattr(processor, f"post_process_{task}_segmentation")
    if whole:
        np.testing.assert_array_equal(segment(ours, PICTURE).map, read(answers, [PICTURE.shape[:2]])[0].numpy())
        return
    options, known = {"threshold": 0.4}, {"threshold": 0.4}
    if task == "panoptic":
        options, known = options | {"overlap": 0.2}, known | {"overlap_mask_area_threshold": 0.2}
    for stuff in ([], [0, 2, 4]) if task == "panoptic" else ([],):
        wanted = read(answers, [PICTURE.shape[:2]], **known, **({"stuff_classes": stuff} if stuff else {}))[0]
        result = segment(ours, PICTURE, task=task, stuff_classes=stuff, **options)
        np.testing.assert_array_equal(result.map, wanted["segmentation"].numpy())
        parts = wanted["segments_info"]
        assert [(part.id, part.label_id) for part in result.segments] == [(p["id"], p["label_id"]) for p in parts]
        assert len(parts) > 1
        for part, other in zip(result.segments, parts, strict=True):
            assert abs(part.score - other["score"]) < SCORE


@pytest.mark.parametrize("backend", ["pil", "torchvision"])
@pytest.mark.parametrize("whole", [True, False])
def test_pictures_of_many_sizes(whole, backend, tmp_path, monkeypatch, record_property):
    """What the model takes, beside the processors; see tests/checkpoints/test_pictures_interop.py."""
    name, end = ("image_processing_pil_eomt", "Pil") if backend == "pil" else ("image_processing_eomt", "")
    try:
        module = importlib.import_module(f"transformers.models.eomt.{name}")
        size = {"shortest_edge": SIDE, "longest_edge": None if whole else SIDE}
        options = {"do_split_image": whole, "do_pad": not whole, "size": size}
        processor = getattr(module, f"EomtImageProcessor{end}")(**options)
    except ImportError as error:
        pytest.skip(str(error))
    for part in (of_transformers("Eomt"), processor):
        part.save_pretrained(tmp_path)
    config = keras_vit.load(tmp_path).config
    scale, found = 255 * np.asarray(config.pipeline.std), 0.0
    for picture in pictures():
        theirs = np.moveaxis(np.asarray(processor(images=[picture], return_tensors="np")["pixel_values"]), 1, -1)
        ours = segmenting.prepared(config, picture, whole)[0]
        assert ours.shape == theirs.shape, picture.shape
        found = max(found, float(np.abs((ours - theirs) * scale).max()))
    record_property("largest difference", found)
    print(f"EoMT, {'semantic' if whole else 'panoptic'}, {backend}: {found:.3g} grey levels over {COUNT} sizes")
    assert found <= ROUNDING


def test_files_of_the_authors_on_dinov3(tmp_path):
    theirs = of_transformers("EomtDinov3", layer_norm_eps=1e-5)
    renames = {
        r"embeddings\.": "network.encoder.backbone.patch_embed.",
        r"layers\.": "network.encoder.backbone.blocks.",
        r"layernorm\.": "network.encoder.backbone.norm.",
        r"query\.": "network.q.",
        r"class_predictor\.": "network.class_head.",
        r"mask_head\.fc(\d)": lambda match: f"network.mask_head.{2 * int(match[1]) - 2}",
        r"upscale_block\.block\.(\d+)\.layernorm2d": r"network.upscale.\1.norm",
        r"upscale_block\.block\.": "network.upscale.",
        r"attn_mask_probs": "network.attn_mask_probs",
    }
    state = {}
    for name, values in theirs.state_dict().items():
        for old, new in renames.items():
            name, changed = re.subn(f"^{old}", new, name)
            if changed:
                break
        state[name] = values
    torch.save(state, tmp_path / "pytorch_model.bin")
    same_logits(keras_vit.load(tmp_path / "pytorch_model.bin", image_size=SIDE), logits_of(theirs))
