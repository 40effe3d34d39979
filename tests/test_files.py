"""Atomic writes."""

import contextlib
import sys

import pytest

from keras_vit._files import check_room, replacing, write_text

pytestmark = pytest.mark.once


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_its_place_when_it_is_complete(tmp_path):
    path = tmp_path / "model.weights.h5"
    path.write_text("old")
    with replacing(path) as first, replacing(path) as second:
        assert first.parent == tmp_path and first.name.endswith("model.weights.h5")
        first.write_text("first")
        second.write_text("second")
        assert path.read_text() == "old"
    assert path.read_text() == "first" and names(tmp_path) == [path.name]


@contextlib.contextmanager
def longest_file(size):
    """What a full disk does to a process: no file may become longer than this."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


posix = pytest.mark.skipif(sys.platform == "win32", reason="the limit is one of POSIX")


@posix
def test_a_link_stays_and_its_ending_counts(tmp_path):
    path, target = tmp_path / "map.png", tmp_path / "blob"
    path.symlink_to(target)
    with replacing(path) as temporary:
        assert temporary.suffix == ".png"  # by which writers choose the format
        temporary.write_text("new")
    assert path.is_symlink() and target.read_text() == "new" and names(tmp_path) == ["blob", "map.png"]


def test_room_is_looked_for_before_writing(tmp_path):
    with longest_file(2**20), pytest.raises(OSError, match="for a file of 2,097,152 bytes. Make room"):
        check_room(tmp_path / "large", 2**21)
    check_room(tmp_path / "large", 2**21)
    assert names(tmp_path) == []


@posix
@pytest.mark.parametrize("name", ["model.npz", "model.keras", "model.weights.h5"])
def test_a_model_that_finds_no_room_leaves_what_was_there(tmp_path, name):
    """HDF5 would end the process, not now but when it ends: the file has to be refused before HDF5 sees it."""
    import keras_vit
    from keras_vit.checkpoints import save_model

    model = keras_vit.load("glyphs")
    path = tmp_path / name
    path.write_text("old")
    with longest_file(2**18), pytest.raises(OSError, match=str(tmp_path)):
        save_model(model, path, overwrite=True)
    assert path.read_text() == "old"
    assert names(tmp_path) == [name]


@posix
@pytest.mark.parametrize("error", [None, "a library says so", "another.png"])
def test_an_error_names_the_file(tmp_path, error):
    path = tmp_path / "table.csv"
    wanted = f"File too large: '{path}'" if error is None else f"{path} cannot be written: {error}"
    raised = FileNotFoundError(2, "missing", error) if error == "another.png" else error and OSError(error)
    with longest_file(10), pytest.raises(OSError) as caught, replacing(path) as temporary:
        if raised:
            raise raised
        temporary.write_bytes(bytes(100))
    assert caught.value is raised if error == "another.png" else wanted in str(caught.value)
    with pytest.raises(FileNotFoundError, match=f"'{tmp_path}/nowhere/table.csv'"):
        write_text(tmp_path / "nowhere" / "table.csv", "x")


def test_names_as_long_as_file_systems_take(tmp_path):
    for name in ("a" * 251 + ".txt", "\U0001f52c" * 62 + ".txt"):
        write_text(tmp_path / name, "x")
    assert len(names(tmp_path)) == 2
