"""Class names are part of a model's config."""

import pytest

from keras_vit.models import BiTConfig, ViTConfig

pytestmark = pytest.mark.once

TINY = {"image_size": 8, "patch_size": 4, "width": 8, "depth": 1, "heads": 2, "mlp_width": 16}
CONFIGS = {
    "vit": lambda **fields: ViTConfig(**TINY, **fields),
    "bit": lambda **fields: BiTConfig(stages=(1,), **fields),
}


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def test_names_are_a_tuple_and_plain_data(config):
    named = config(classes=2, class_names=["cat", "dog"])
    assert named.class_names == ("cat", "dog")
    assert named.to_dict()["class_names"] == ["cat", "dog"]


def test_another_number_of_classes_drops_the_names(config):
    named = config(classes=2, class_names=("cat", "dog"))
    assert named.replace(classes=3).class_names is None
    assert named.replace(classes=None).class_names is None
    assert named.replace(classes=2).class_names == ("cat", "dog")
    assert named.replace(classes=1, class_names=("cat",)).class_names == ("cat",)


@pytest.mark.parametrize(
    ("classes", "names", "error"),
    [
        (2, ("cat",), ValueError),
        (None, ("cat", "dog"), ValueError),
        (2, "ab", TypeError),
        (2, 7, TypeError),
        (2, ("cat", 1), TypeError),
        (2, ("cat", "dog\nbird"), ValueError),
        (2, ("cat", ""), ValueError),
        (2, ("cat", " dog"), ValueError),
    ],
)
def test_names_that_do_not_fit_are_refused(config, classes, names, error):
    with pytest.raises(error, match="class_names"):
        config(classes=classes, class_names=names)
