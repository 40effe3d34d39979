"""The catalogue: data that agree with one another, names that find them, and errors that help."""

import csv

import pytest

import keras_vit
from keras_vit.checkpoints import augreg_index, best_augreg
from keras_vit.checkpoints.catalogue import (
    _augreg_entry,
    catalogue,
    find_entry,
    list_models,
    list_weights,
    plain_variant,
    recommended,
    recommended_size,
)
from keras_vit.checkpoints.hub import parse_hub_address
from keras_vit.models import VARIANTS, count_weights, factory_name, variant_config

pytestmark = pytest.mark.once

B16 = "augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
B16_FINE_TUNED = f"{B16}--imagenet2012-steps_20k-lr_0.03-res_384"


BIT = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")


def test_every_row_makes_sense():
    """Sizes agree with parameters: arrays are float32, and an .npz adds 300 bytes to each of at most 400."""
    known = {plain_variant(name) for name in VARIANTS}
    others = {"ViT-B/30", "FlexiViT-L", "FlexiViT-B", "FlexiViT-S", *(f"BiT-R{a}" for a in BIT)}
    for entry in catalogue().values():
        assert plain_variant(entry.variant) in known or entry.variant in others, entry
        assert entry.layout in ("vit_jax", "big_vision", "bit", "tips"), entry
        if entry.layout == "tips":  # their README says it
            assert entry.dataset and entry.license == "CC-BY-4.0", entry
        else:
            assert entry.dataset and entry.license == "Apache-2.0" and "license" in entry.inferred, entry
        assert all(url.startswith("https://") and url.endswith(".npz") for url in entry.urls), entry
        assert entry.urls[0].startswith("https://storage.googleapis.com/") and "+" not in entry.urls[0], entry
        assert (entry.top1 is None) or (70 < entry.top1 < 90 and entry.top1_source and entry.classes == 1000), entry
        assert ("head is all zeros" in " ".join(entry.notes)) == entry.name.startswith("imagenet21k/"), entry
        if entry.name == "sam/ViT-S_16":  # the weights and two moments of its optimizer
            assert entry.bytes > 3 * 4 * entry.params
        elif entry.size is not None:
            assert entry.bytes * 0.98 - 400 * 300 <= 4 * entry.params <= entry.bytes * 1.02, entry.name
    assert sum(entry.size is not None for entry in catalogue().values()) == 9 + 8 + 10 + 4 + 11


FOUND = {
    "imagenet21k/ViT-B_16.npz": "imagenet21k/ViT-B_16",
    "ViT-B_16-224": "imagenet21k+imagenet2012/ViT-B_16-224",
    "flexivit_b_i1k": "big_vision/flexivit/flexivit_b_i1k",
    "BiT-M-R50x1": "bit_models/BiT-M-R50x1",
    B16: B16,
    B16.removeprefix("augreg/"): B16,
}


def test_find_entry():
    assert {name: find_entry(name).name for name in FOUND} == FOUND
    url = "https://storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz"
    assert find_entry("imagenet21k+imagenet2012/R50+ViT-B_16").urls == (url,)
    mirror = "https://github.com/faustomorales/vit-keras/releases/download/dl/ViT-B_16_imagenet21k.npz"
    assert find_entry("imagenet21k/ViT-B_16").urls[1:] == (mirror,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("imagnet21k/ViT-B_16", "no checkpoint or model 'imagnet21k/ViT-B_16'.*Did you mean 'imagenet21k/ViT-B_16'"),
        ("siglip2_b16_225", "Did you mean .*'big_vision/siglip2/siglip2_b16_224'"),
        ("BIT-M-R50X1", "Did you mean 'bit_models/BiT-M-R50x1'"),
        ("B/16", "a model, not a checkpoint.*imagenet21k/ViT-B_16.*list_weights"),
        ("B17", "Did you mean 'ViT-B/16'"),
        ("glyph", "Did you mean 'glyphs'"),
        ("me/x", "Did you mean 'hf://me/x', a repository of the Hugging Face Hub"),
        ("hf:/me/x", "Did you mean 'hf://me/x', a repository of the Hugging Face Hub"),
        ("facebook/dinov2-base", "Did you mean 'hf://facebook/dinov2-base'"),
        ("nothing like it", r"See list_weights\(\) or `keras-vit list`"),
        ("ViT-B_16", "the name of several checkpoints.*imagenet21k/ViT-B_16.*imagenet21k[+]imagenet2012.*gsam/"),
        *(("augreg/B_16-i21k" + tail * 50_000, "'B_16-i21k.* not the name of an AugReg") for tail in "x-\x08"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        find_entry(name)
    assert len(str(caught.value)) < 1000


def test_recommended_for_every_variant_that_has_one():
    names = "-Ti/16 -S/16 -S/32 -B/8 -B/16 -B/32 -L/16 -L/32"
    for variant in f"{names} R+-Ti/16 R26+-S/32 R50+-B/16 R50+-L/32".replace("-", "ViT-").split():
        entry = recommended(variant)
        size, original = 224 if variant == "ViT-B/8" else 384, variant in ("ViT-L/32", "R50+ViT-B/16")
        assert (entry.variant, entry.classes, entry.image_size) == (variant, 1000, size) and entry.top1
        assert entry.params == count_weights(variant_config(variant, size, 1000))  # test_counts.py has the original's
        assert entry.name.startswith("imagenet21k+imagenet2012/" if original else "augreg/")
    for name in BIT:
        entry = recommended(f"BiT-R{name}")
        assert entry.name == f"bit_models/BiT-M-R{name}-ILSVRC2012"
        assert entry.params == count_weights(variant_config(entry.variant))
    assert (recommended("vit_b16").name, recommended("vit_b16").top1) == (B16_FINE_TUNED, 85.49)


def test_every_variant_with_a_repository_has_a_recommended_checkpoint():
    listed = {row["name"]: row for row in list_weights()}
    of_the_hub = {row["variant"] for name, row in listed.items() if name.startswith("hf://")} & {*VARIANTS}
    for variant in of_the_hub - {"ViT-H/14"}:  # which has no classes of ImageNet-1k, as others of its family do
        entry = recommended(variant)
        assert entry.name in listed and entry.image_size == recommended_size(variant)
        assert listed[entry.name]["variant"] == variant, entry.name
        assert f"weights for images of {entry.image_size} pixels" in getattr(keras_vit, factory_name(variant)).__doc__
    for variant in VARIANTS:
        family = VARIANTS[variant].family
        assert recommended_size(variant) or family in ("ViT", "Mixer"), variant
    assert recommended("dinov2 b14").name == "hf://facebook/dinov2-base"
    assert "weights for images of 384 pixels; `image_size=` resizes" in keras_vit.ViT_B16.__doc__
    assert "pretrained=True` loads weights" not in keras_vit.create_model.__doc__
    with pytest.raises(ValueError, match="'EoMT-L/16' is a model, not a checkpoint.*hf://tue-mps/coco_panoptic_"):
        find_entry("EoMT-L/16")


def test_list_weights():
    rows = list_weights("B/16")
    assert rows == list_weights("vit_b16") and {row["variant"] for row in rows} == {"ViT-B/16"}
    official = [row["name"] for row in rows if not row["name"].startswith("hf://")]
    assert official == [n for n, e in catalogue().items() if e.variant == "ViT-B/16"]
    assert "hf://google/vit-base-patch16-224" in [row["name"] for row in rows]
    assert len([row for row in list_weights("SigLIP2") if row["layout"]]) == 17
    assert len([row for row in list_weights() if row["layout"]]) == len(catalogue())
    assert [row["name"] for row in list_weights("R50+B/16")] == [
        "imagenet21k/R50+ViT-B_16",
        "imagenet21k+imagenet2012/R50+ViT-B_16",
        "hf://timm/vit_base_r50_s16_384.orig_in21k_ft_in1k",
        "hf://timm/vit_base_r50_s16_224.orig_in21k",
    ]
    other = B16.replace("medium1", "strong2")
    assert [row["name"] for row in list_weights(other)] == [other]
    with pytest.raises(ValueError, match="Did you mean"):
        list_weights("imagenet22k/ViT-B_16")
    with pytest.raises(TypeError, match="query must be a string"):
        list_weights(16)


def test_weights_and_models_of_a_family():
    rows = list_weights(family="dinov2")
    assert {row["variant"] for row in rows} == {f"DINOv2-{size}/14" for size in "SBLg"}
    assert {row["family"] for row in list_models(family="DINOv2-reg")} == {"DINOv2-reg"}
    assert len(list_models(family="hybrid")) == 5
    assert {row["family"] for row in list_weights("siglip", family="SigLIP")} == {"SigLIP"}
    with pytest.raises(ValueError, match="family must be one of .*DINOv2.* but 'DINO2'"):
        list_weights(family="DINO2")
    with pytest.raises(TypeError, match="family must be a name"):
        list_models(family=2)
    with pytest.raises(TypeError, match="query must be a string, part of"):
        list_models(["B/16"])


def test_repositories_of_other_people():
    """Every row names a variant of its family, with the parameters that it really has, and an address that is one."""
    rows = [row for row in list_weights() if row["layout"] is None]
    assert len({row["name"] for row in rows}) == len(rows) > 100
    variants = {row["name"]: row for row in list_models()}
    for row in rows:
        assert parse_hub_address(row["name"]).repository == row["name"].removeprefix("hf://")
        assert row["dataset"] and (row["top1"] is None or 40 < row["top1"] < 91), row["name"]
        if row["variant"].startswith("test_vit") or row["task"] is not None:
            continue
        assert variants[row["variant"]]["family"] == row["family"], row["name"]
        if row["params"] is not None and row["classes"] in (None, 1000):
            size = row["image_size"] // 14 * 14 if "14" in row["variant"] else row["image_size"]
            config = variant_config(row["variant"], size, row["classes"])
            # Rounded to 10,000; mask tokens, and what timm leaves out or has beside, make less than a thousandth.
            assert row["params"] == pytest.approx(count_weights(config), rel=2e-3, abs=2e4), row["name"]


def test_augreg_names_of_the_catalogue_are_parsed_alike():
    for name in [name for name in catalogue() if name.startswith("augreg/")]:
        listed, parsed = catalogue()[name], _augreg_entry(name.removeprefix("augreg/"))
        for field in ("variant", "image_size", "classes", "dataset", "urls", "layout"):
            assert getattr(listed, field) == getattr(parsed, field), name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("B_16", "B_14"), ("i21k", "i22k"), ("300ep", "300"), ("lr_0.001", "lr_x"), ("medium1", "medium")),
        *(("wd_0.1", "wd_0.2"), ("sd_0.0", "sd_1"), ("imagenet2012", "imagenet"), ("-res_384", "-res_512")),
    ],
)
def test_a_wrong_augreg_name(old, new):
    with pytest.raises(ValueError, match="not the name of an AugReg checkpoint. An example .* aug: none.* res: 224"):
        find_entry(B16_FINE_TUNED.replace(old, new))


COLUMNS = "name ds aug wd final_val filename adapt_ds adapt_resolution adapt_final_val adapt_final_test adapt_filename"
COLUMNS = COLUMNS.split()

TRAINED = (("B/16", "light1", 0.03, 0.5), ("B/16", "medium1", 0.1, 0.6), ("S/16", "none", 0.1, 0.7))


@pytest.fixture
def index(tmp_path):
    """A small copy of index.csv with the official columns. Validation and test accuracies disagree on purpose."""
    rows = []
    for model, aug, wd, final in TRAINED:
        stem = f"{model.replace('/', '_')}-i21k-300ep-lr_0.001-aug_{aug}-wd_{wd}-do_0.0-sd_0.0"
        for ds, lr, steps, res, val, test in [
            ("imagenet2012", 0.01, 20000, 384, 0.84, 0.90),
            ("imagenet2012", 0.03, 20000, 384, 0.86, 0.80),
            ("imagenet2012", 0.03, 20000, 224, 0.85, 0.80),
            ("oxford_iiit_pet", 0.003, 500, 224, "", 0.9),
        ]:
            adapted = f"{stem}--{ds}-steps_{steps // 1000}k-lr_{lr}-res_{res}"
            row = [model, "i21k", aug, wd, final, stem, ds, res, val, test, adapted]
            rows.append(dict(zip(COLUMNS, row, strict=True)))
    with (tmp_path / "index.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path / "index.csv"


def test_the_best_of_the_index(index, monkeypatch):
    rows = augreg_index(index)
    monkeypatch.setenv("HOME", str(index.parent))
    assert augreg_index("~/index.csv") == rows
    assert len(rows) == 12
    assert rows[0]["final_val"] == 0.5 and rows[0]["wd"] == "0.03" and rows[3]["adapt_final_val"] is None
    assert best_augreg(rows, "ViT-B/16")["weights"] == B16
    assert best_augreg(rows, "b16", adapt_ds="imagenet2012")["weights"] == B16_FINE_TUNED
    at_224 = best_augreg(rows, "B/16", adapt_ds="imagenet2012", resolution=224)
    assert at_224["weights"].endswith("lr_0.03-res_224")
    light = best_augreg([row for row in rows if row["aug"] == "light1"], "B/16", adapt_ds="imagenet2012")
    assert light["weights"].startswith("augreg/B_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03")
    assert find_entry(light["weights"]).variant == "ViT-B/16"


def test_nothing_in_the_index_fits(index):
    for options, message in (
        ({"variant": "L/16"}, "name='L/16'.*B/16, S/16"),
        ({"ds": "i1k"}, "ds='i1k'.*i21k"),
        ({"adapt_ds": "oxford_iiit_pet"}, "lack adapt_final_val"),
        ({"resolution": 224}, "pass adapt_ds"),
    ):
        with pytest.raises(ValueError, match=message):
            best_augreg(augreg_index(index), **{"variant": "B/16"} | options)


@pytest.mark.parametrize("cell", ["-nan", "inf", "86.5", "half"])
def test_an_accuracy_that_is_no_number_does_not_win(index, cell):
    text = index.read_text().replace(",0.5,", f",{cell},")  # the rows of B/16 with light1
    index.write_text(text + "\n\n", encoding="utf-8-sig")  # as a spreadsheet writes it
    assert augreg_index(index)[0]["final_val"] is None
    assert best_augreg(augreg_index(index), "ViT-B/16")["weights"] == B16


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data.replace(b"light1", b"l\xefght1"), "codec can't decode"),
        (lambda data: data.replace(b"adapt_final_test", b"final_val", 1), "the column 'final_val' must be there once"),
        (lambda data: data.replace(b",ds,", b",\x1b[31mds,", 1), r"the column 'ds' must be there once.*\\x1b\[31mds"),
        (lambda data: data + b'"' + b"x" * 200_000, "field larger"),
        (lambda data: b"", "columns are: None"),
        (lambda data: data + b"B/16,i21k", "line 14 must have .* cells"),
    ],
)
def test_a_damaged_index(index, damage, message):
    index.write_bytes(damage(index.read_bytes()))
    with pytest.raises(ValueError, match=f"is not AugReg's index.csv: .*{message}") as caught:
        augreg_index(index)
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 1000
    with pytest.raises(FileNotFoundError):
        augreg_index(index.with_name("other.csv"))
