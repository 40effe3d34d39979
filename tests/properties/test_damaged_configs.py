"""What a file says about its model may be a stranger's: any damage of it ends in a ValueError, in little memory."""

import contextlib
import json
import resource
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_vit
from keras_vit.checkpoints import save_model
from tests.checkpoints import test_bad_keras_files, test_own_files
from tests.properties.random_models import BASES, DENSE, OF_IMAGES, examples, made

pytestmark = [pytest.mark.nightly, pytest.mark.once, pytest.mark.skipif(sys.platform != "linux", reason="Linux's")]

MEMORY = 200 * 2**20
STRANGE = [0, -1, 7, 2**31, 10**9, 10**30, 1.5, 1e308, float("nan"), float("inf"), True, None, "", "1", "x" * 9999]
STRANGE += [[], {}, [1], [10**9] * 4, [10**6, 10**6], [[1, 2]], {"a": 1}]


@contextlib.contextmanager
def little_memory():
    """Memory beyond what the process has is refused from `MEMORY` on."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def with_config(source, target, config):
    """A file as another one, except for what it says of its config."""
    if source.suffix == ".npz":
        return test_own_files.changed(source, target, config=config)

    def change(text):
        said = json.loads(text)
        said["config"]["config"] = config
        return json.dumps(said).encode()

    return test_bad_keras_files.with_words(source, target, change)


@st.composite
def damage(draw, fields):
    """Fields of a config with some of their values lost, strange, or named otherwise."""
    fields = json.loads(json.dumps(fields))
    for _ in range(draw(st.integers(1, 2))):
        place = fields["backbone"] if "backbone" in fields and draw(st.booleans()) else fields
        name = draw(st.sampled_from(sorted(place)))
        kind = draw(st.sampled_from(["value", "value", "value", "lost", "renamed"]))
        value = place.pop(name)
        if kind == "value":
            value = draw(st.sampled_from(STRANGE))
        if kind != "lost":
            place[name if kind == "value" else f"{name} "] = value
        if not isinstance(fields.get("backbone", {}), dict):
            break
    return fields


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A sound file of every kind of models, in every format that says its config."""
    folder, found = tmp_path_factory.mktemp("sound"), []
    for kind in OF_IMAGES:
        model = made(BASES[kind][0])
        for ending in (".keras", ".weights.h5", *((".npz",) if kind in DENSE else ())):
            found.append((folder / f"{kind}{ending}", model.config.to_dict()))
            save_model(model, found[-1][0])
    keras_vit.load(found[0][0])  # what is imported late is there
    return found


@given(st.data())
@examples(60)
def test_damaged_configs_end_in_a_value_error(sound, data):
    source, fields = data.draw(st.sampled_from(sound))
    damaged = data.draw(damage(fields))
    with tempfile.TemporaryDirectory() as folder:
        path = with_config(source, Path(folder, source.name), damaged)
        with little_memory(), contextlib.suppress(ValueError):
            keras_vit.load(path)
