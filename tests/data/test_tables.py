"""Labels in tables, shares that are held out, and uneven classes that are evened out."""

import numpy as np
import pytest

from keras_vit.data import has_test_split, open_data, open_table

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.once

OPTIONS = {"image_size": 8, "batch_size": 4}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve pictures, each of one grey: its number."""
    folder = tmp_path_factory.mktemp("photos")
    for i in range(12):
        Image.fromarray(np.full((9, 9, 3), 20 * i, "uint8")).save(folder / f"{i}.png")
    return folder


def write(photos, name="labels.csv", text=None, **columns):
    columns = {"file": [f"{i}.png" for i in range(12)]} | columns
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (photos / name).write_text(text or "\n".join(lines) + "\n", encoding="utf-8-sig")
    return photos / name


def contents(stream):
    """The numbers of the pictures, and their labels."""
    images, labels = (np.concatenate(part) for part in zip(*stream, strict=True))
    return (images[:, 0, 0, 0] / 20).round().astype(int).tolist(), labels


WORDS = ["2", "10", "1"] * 4


def test_a_table_of_classes(photos):
    table = open_table(write(photos, label=WORDS))
    assert (table.target, table.class_names) == ("class", ("1", "2", "10")) and not has_test_split(table)
    with pytest.raises(ValueError, match=r"are numbers .*class_names=\['1', '2', '10'\] to sort them as numbers"):
        open_data(table, split="test", **OPTIONS)
    with open_data(table, split="test", class_names=["1", "2", "10"], **OPTIONS) as stream:
        numbers, labels = contents(stream)
    assert numbers == list(range(12)) and labels.argmax(axis=1).tolist() == [1, 2, 0] * 4
    with open_data(table, split="test", class_names=["10", "2", "1"], **OPTIONS) as stream:
        assert contents(stream)[1].argmax(axis=1).tolist() == [1, 0, 2] * 4
    (photos / "sub").mkdir()
    Image.new("RGB", (9, 9)).save(photos / "sub" / "x.png")
    windows = open_table(write(photos, text="file,label\nsub\\x.png,a\n.\\1.png,b\n"))
    assert windows.files == [photos / "sub/x.png", photos / "1.png"]
    semicolons = write(photos, text="file;label\n0.png;a, b\n1.png;c\n")
    assert open_table(semicolons).class_names == ("a, b", "c")


def test_a_class_takes_one_number_in_memory(photos):
    names = [f"class{i}" for i in range(50)]
    table = open_table({"file": [photos / f"{i % 12}.png" for i in range(12)], "label": names[:12]})
    assert table.labels.dtype == "int64" and table.labels.shape == (12,)
    with open_data(table, split="test", class_names=names[::-1], **OPTIONS) as stream:
        assert contents(stream)[1].argmax(axis=1).tolist() == [49 - i for i in range(12)]
    with pytest.raises(ValueError, match="row 11 has the label 'class11', but the classes are 'class0'"):
        open_data(table, split="test", class_names=names[:11], **OPTIONS)


@pytest.mark.parametrize("form", ["separator", "columns", "lists", "arrow", "parquet"])
def test_several_labels(photos, form):
    cells = [["a", "b"], ["b"], [], ["c", "a"]] * 3
    expected = [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 1]] * 3
    files = [str(photos / f"{i}.png") for i in range(12)]
    if form == "separator":
        table = open_table(write(photos, label=["|".join(c) for c in cells]), separator="|")
    elif form == "columns":
        flags = {name: ["01"[name in c] for c in cells] for name in "abc"}
        table = open_table(write(photos, **flags), label=["a", "b", "c"])
    else:
        table = {"file": files, "label": cells}
        if form != "lists":
            pyarrow = pytest.importorskip("pyarrow")
            table = pyarrow.table(table)
        if form == "parquet":
            from pyarrow import parquet

            parquet.write_table(table, photos / "labels.parquet")
            table = photos / "labels.parquet"
        table = open_table(table)
    assert (table.target, table.class_names) == ("multilabel", ("a", "b", "c"))
    with open_data(table, split="test", **OPTIONS) as stream:
        numbers, labels = contents(stream)
    assert numbers == list(range(12)) and labels.dtype == np.float32 and labels.tolist() == expected


def test_numbers_and_splits(photos):
    splits = ["train"] * 6 + ["val"] * 2 + ["Test set"] * 4
    table = open_table(write(photos, age=[i / 2 for i in range(12)], split=splits), label="age", target="number")
    assert has_test_split(table)
    with open_data(table, split="test", **OPTIONS) as stream:
        assert (stream.target, stream.classes, stream.class_names) == ("number", 1, ["age"])
        numbers, labels = contents(stream)
    assert numbers == [8, 9, 10, 11] and labels.tolist() == [[4], [4.5], [5], [5.5]]
    with open_data(table, class_names=["years"], **OPTIONS) as stream:  # what the number is to be called
        assert (stream.examples, stream.class_names) == (6, ["years"])
        assert stream.labels.tolist() == [[i / 2] for i in range(6)]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"species": WORDS}, {}, r"no column 'label', only 'file', 'species'"),
        ({"label": WORDS}, {"file": "files"}, "no column 'files'.* Did you mean 'file'"),
        ({"label": ["a", ""] * 6}, {}, "row 3 has nothing in the column 'label'"),
        ({"label": [1, "x"] * 6}, {"target": "number"}, "row 3 has 'x' in column 'label': a finite number"),
        ({"label": [1, "1e39"] * 6}, {"target": "number"}, "row 3 has '1e39' in column 'label': a finite number"),
        ({"label": [1, 2] * 6}, {"label": ["label"]}, "row 3 has '2' in column 'label': 0 or 1"),
        ({"label": WORDS, "split": ["train", "later"] * 6}, {}, "row 3 has the split 'later'"),
        ({"label": WORDS}, {"separator": "|", "target": "number"}, "one label for each image"),
        ({"label": ["a", "b\u2028c"] * 6}, {}, "cannot be the name of a class"),
        ({"text": "file,label,label\na,b,c\n"}, {}, "different names of columns"),
        ({"text": 'file,label\n"a,b\n'}, {}, "cannot be read as a table in UTF-8"),
        ({"label": ["z", *"ab" * 5, "a"], "split": ["test", *["train"] * 11]}, {}, "No training row .* the class 'z'"),
        ({"file": ["0.png", "gone.png"] * 6, "label": [*"ab"] * 6}, {}, r"gone.png \(.*csv, row 3\): it .*No such"),
        ({"text": "file,label\n0.png,cat,dog\n"}, {}, "row 2 has 3 cells, but the header has 2 columns.*'dog'"),
        ({"file": ["0.png", "./0.png"] * 6, "label": [*"ab"] * 6}, {}, "row 3 has another label for '0.png' .*row 2"),
        (
            {"file": ["0.png"] * 12, "label": ["a"] * 12, "split": ["train", "test"] * 6},
            {},
            "row 3 has '0.png' in another split than .*row 2",
        ),
        ({"file": ["0.png"] * 12, "label": [1, 2] * 6}, {"target": "number"}, "row 3 has another label .*row 2"),
        ({"label": WORDS}, {"class_names": ["1", "10"]}, "row 2 has the label '2', but the classes are"),
    ],
)
def test_tables_that_are_refused(photos, columns, options, message):
    with pytest.raises(ValueError, match=message):
        names = {"class_names": options.pop("class_names", None)}
        open_data(open_table(write(photos, **columns), **options), **names, **OPTIONS)


@pytest.mark.parametrize("names", [["Cat", "cat"], ["1", "1.0"], ["NaN", "nan"]])
def test_classes_that_are_spelled_alike(photos, names):
    open_table(write(photos, label=["9007199254740992", "9007199254740993", "dog"] * 4))  # no warning
    with pytest.warns(UserWarning, match=f"The classes {names[0]!r}, {names[1]!r} of .* differ in spelling only"):
        open_table(write(photos, label=[*names, "dog"] * 4))
    assert open_table(write(photos, text="file,label\n0.png,a,\n1.png,b,\n")).class_names == ("a", "b")


def arrays(counts, target="class"):
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.zeros((len(labels), 8, 8, 3), "uint8")
    images[..., 2] = 99
    images[:, 0, 0, 1], images[:, 0, 0, 0] = np.divmod(np.arange(len(labels)), 256)
    return images, np.eye(len(counts))[labels] if target == "multilabel" else labels


@pytest.mark.parametrize("target", ["class", "multilabel", "number"])
def test_a_share_is_held_out_of_every_class(target):
    counts, drawn = [100, 40, 10, 1], []
    for seed in (0, 0, 1):
        parts = []
        for split in ("train", "test"):
            options = {"split": split, "shuffle": False, "holdout": 0.1, "seed": seed, "target": target}
            with open_data(arrays(counts, target), **OPTIONS | options) as stream:
                images = np.concatenate([images for images, _ in stream])
                labels = stream.labels.argmax(axis=1) if target == "multilabel" else stream.labels.ravel()
                parts.append((images[:, 0, 0, 0].astype(int).tolist(), np.bincount(labels.astype(int), minlength=4)))
        assert sorted(parts[0][0] + parts[1][0]) == list(range(151)) and len(parts[1][0]) == 15
        assert np.abs(parts[1][1] - np.array([10, 4, 1, 0])).max() <= 1 and parts[1][1][3] <= (target == "number")
        drawn.append(parts[1][0])
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("target", ["class", "multilabel"])
@pytest.mark.parametrize(("sampling", "shares"), [("balanced", [1, 1, 1]), ("sqrt", [9, 6, 3**0.5])])
def test_sampling(target, sampling, shares):
    """Counts to within one an epoch, whatever was asked for before."""
    data, options = arrays([81, 36, 3], target), {"batch_size": 40, "image_size": 8}
    expected = 120 * np.array(shares) / sum(shares)
    with open_data(data, sampling=sampling, target=target, **options) as stream:
        assert stream.describe()["sampling"] == sampling
        batches = [stream.batch(step) for step in range(6)]
        for epoch in (batches[:3], batches[3:]):
            assert np.abs(sum(labels.sum(axis=0) for _, labels in epoch) - expected).max() <= 1
    with open_data(data, sampling=sampling, target=target, prefetch=0, **options) as again:
        np.testing.assert_array_equal(again.batch(4)[0], batches[4][0])
