"""Labels in a table: a CSV or Parquet file, or a table in memory, with a row for each image."""

import csv
import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import check_choice, check_class_name, did_you_mean, listing, printable, require_packages
from keras_vit._files import expanded_path, fingerprint
from keras_vit.data import examples as base
from keras_vit.data.targets import CLASS, MULTILABEL, NUMBER, TARGETS

_MASK = "mask"  # the target of a table with files of masks, which `open_masks` opens


@dataclasses.dataclass(frozen=True, eq=False)
class LabelTable:
    """Labelled images, one for each row of a table; `open_table` returns it.

    Attributes:
        files: Paths of the images.
        labels: int64 `(images,)`, the number of each image's class; float32 `(images, classes)` of 0 and 1 for several
            labels, or `(images, 1)` for regression.
        target: `"class"`, `"multilabel"` or `"number"`.
        class_names: Class names in the order of the labels; the name of the column for regression.
        splits: `"train"`, `"test"` or `"validation"` for each image; None if the table has no splits.
        rows: Name of each row for error messages.
        source: Name of the table for error messages.
        masks: For the target `"mask"`: the path of each image's mask, for `open_masks`.

    Examples:
        >>> table = data.open_table({"file": ["cat.png", "dog.png"], "age": [3, 7]}, label="age", target="number")
        >>> len(table), table.labels.tolist()
        (2, [[3.0], [7.0]])
    """

    files: Sequence[Path] = dataclasses.field(repr=False)
    labels: np.ndarray = dataclasses.field(repr=False)
    target: str
    class_names: tuple[str, ...]
    splits: Sequence[str] | None = dataclasses.field(repr=False)
    rows: Sequence[str] = dataclasses.field(repr=False)
    source: str
    masks: Sequence[Path] | None = dataclasses.field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def has_test_split(self) -> bool:
        """Whether some rows are for testing or validation."""
        return any(split in base.IN_PLACE_OF for split in self.splits or ())

    def rows_of(self, split: str) -> list[int]:
        """Returns the numbers of a split's rows, or of all rows if there are no splits; ValueError if it has no rows.

        If only one of `"test"` and `"validation"` exists, it serves as both.
        """
        splits = self.splits or [split] * len(self)
        chosen = split if split in splits else base.IN_PLACE_OF.get(split)
        rows = [i for i in range(len(self)) if splits[i] == chosen]
        if not rows:
            raise ValueError(f"{self.source} has no rows of the split {split!r}, only of {listing(sorted({*splits}))}.")
        return rows

    def called(self, i: int) -> str:
        """Returns what a row is called in messages, by its file."""
        return f"{self.files[i]} ({self.rows[i]})"

    def open_examples(self, split: str, class_names: list[str] | None, reading: base.Reading) -> base.Examples:
        """Returns the images of a split, in the order of the rows; all rows for each split if the table has none.

        `class_names` gives the order of the classes, or the name of a number.
        """
        if self.masks is not None:
            raise ValueError(f"{self.source} has masks. Pass data.open_masks(table) in place of the table.")
        kind = TARGETS[self.target]
        if class_names is None and kind.has_classes:
            base.check_order(self.class_names, self.source)
        every = base.Examples(self.files, np.arange(len(self)), "", "table", self.called)
        examples = every.part(self.rows_of(split)).readable(reading)
        rows = examples.labels.tolist()
        names, labels = class_names or list(self.class_names), self.labels[rows]
        if kind.has_classes:
            labels = self._numbered(rows, names)
            if split == "train" and len(names) < 2 and kind is CLASS:
                raise ValueError(f"A classifier needs two classes or more, but {self.source} has {listing(names)}.")
            used = {*labels.tolist()} if kind is CLASS else np.flatnonzero(labels.any(axis=0))
            without = [name for number, name in enumerate(names) if number not in used]
            if split == "train" and without and class_names is None:
                found = f"No training row of {self.source} has the class {listing(without)}"
                raise ValueError(f"{found}. Pass class_names= without it.")
        return dataclasses.replace(
            examples,
            labels=labels,
            fingerprint=fingerprint(labels, [self.files[i].name for i in rows]),
            classes=len(names),
            class_names=names,
            target=self.target,
        )

    def _numbered(self, rows: list[int], names: list[str]) -> np.ndarray:
        """Returns the labels of rows for classes in this order; ValueError for a row with a label of another class."""
        labels, order = self.labels[rows], {name: number for number, name in enumerate(names)}
        places = np.array([order.get(name, -1) for name in self.class_names], "int64")
        of_row = places[labels] if labels.ndim == 1 else np.where(labels > 0, places, 0).min(axis=1)
        if (of_row < 0).any():
            i = int(of_row.argmin())
            number = labels[i] if labels.ndim == 1 else np.flatnonzero((labels[i] > 0) & (places < 0))[0]
            found = f"{self.rows[rows[i]]} has the label {self.class_names[number]!r}"
            advice = "Correct the label, or add the class to class_names."
            raise ValueError(f"{found}, but the classes are {listing(names)}. {advice}")
        if labels.ndim == 1:
            return of_row
        numbered = np.zeros((len(rows), len(names)), "float32")
        numbered[:, places[places >= 0]] = labels[:, places >= 0]
        return numbered


def open_table(
    source: Any,
    *,
    file: str = "file",
    label: str | Sequence[str] = "label",
    split: str | None = None,
    target: str | None = None,
    separator: str | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> LabelTable:
    """Opens a table of labelled images with one row per image, for `finetune`, `evaluate` and `open_data`.

    Args:
        source: A `.csv` (commas, semicolons or tabs, UTF-8), `.tsv` or `.parquet` file (which needs pyarrow), a pandas,
            polars or Arrow table, or a dict of columns.
        file: The column of image paths.
        label: The column of labels, or a list of columns with 0 and 1, one for each class.
        split: The column with `train`, `test`, `val` and the like; None: the column `split`, if there is one. Without
            splits, `holdout=` and `validation=0.1` draw one.
        target: Kind of the labels: `"class"`, `"multilabel"`, `"number"` (a quantity such as an age) or `"mask"` (paths
            of masks; the table is then for `open_masks`). None: `"multilabel"` if there are several columns, a
            `separator` or lists in the column, otherwise `"class"`.
        separator: Separator of several labels in one column, such as `"|"`; a cell may be empty. None: one label.
        folder: Folder that image paths are relative to; None: the folder of the file, or the current folder.

    Returns:
        The table. Images are read when they are used.

    Raises:
        TypeError, ValueError: if the table, a column, a cell or an argument is wrong, or labels of a file contradict.
        OSError, ImportError: if the file is missing (FileNotFoundError) or cannot be read; if pyarrow is missing.
    """
    columns, where, first, home = read_columns(source)
    home = home if folder is None else Path(folder)
    several, labels = not isinstance(label, str), [label] if isinstance(label, str) else list(label)
    if not labels or len(set(labels)) < len(labels):
        raise ValueError(f"label must be a column or a list of different columns, but {label!r} was given.")
    if separator is not None and (several or separator == ""):
        raise ValueError(f"separator must be text for one column, but {separator!r} was given with label={label!r}.")
    split = split or ("split" if "split" in columns else None)
    check_columns(columns, [file, *labels, *([split] if split else [])], where)
    lists = any(isinstance(cell, (list, tuple, np.ndarray)) for cell in columns[labels[0]])
    has_many = several or separator is not None or lists
    if target is None:
        target = (MULTILABEL if has_many else CLASS).name
    check_choice("target", target, (CLASS.name, MULTILABEL.name, NUMBER.name, _MASK))
    if has_many and target != MULTILABEL.name:
        raise ValueError(f"target={target!r} takes one label for each image. Pass target='multilabel' for several.")
    count = range(len(columns[file]))
    rows = [f"{where}, row {first + i}" for i in count]
    if not rows:
        raise ValueError(f"{where} must have a row for each image, but has no rows.")

    cells = Cells(columns, rows)
    if target == _MASK:
        classes, values = [], np.zeros((len(rows), 0))
    elif several or target == NUMBER.name:
        classes, values = labels, [[cells.number(name, i, several) for name in labels] for i in count]
    else:
        found = [cells.names(labels[0], i, target, separator) for i in count]
        classes = base.in_order({name for of_row in found for name in of_row}, where)
        numbers = {name: number for number, name in enumerate(classes)}
        if not classes:
            raise ValueError(f"No row of {where} has a label in the column {labels[0]!r}. Pass label=COLUMN.")
        if target == CLASS.name:
            values = [numbers[name] for (name,) in found]
        else:
            values = np.zeros((len(rows), len(classes)), "float32")
            places = [(i, numbers[name]) for i, of_row in enumerate(found) for name in of_row]
            values[tuple(np.transpose(places))] = 1
    for name in classes:
        check_class_name(name, f"{name!r} in {where}")
    if several:
        base.warn_of_spellings(classes, where)
    table = LabelTable(
        files=cells.paths(file, home),
        labels=np.asarray(values, "int64" if target == CLASS.name else "float32"),
        target=target,
        class_names=tuple(classes),
        splits=splits_of([cells.text(split, i) for i in count], rows) if split else None,
        rows=rows,
        source=where,
        masks=cells.paths(labels[0], home) if target == _MASK else None,
    )
    _check_repeated(table)
    return table


@dataclasses.dataclass(frozen=True)
class Cells:
    """The cells of a table; a cell that does not hold what it should is a ValueError that names row and column."""

    columns: dict[str, Sequence[Any]]
    rows: list[str]  # what each is called

    def text(self, column: str, i: int) -> str:
        text = _text(self.columns[column][i])
        if not text:
            raise ValueError(f"{self.rows[i]} has nothing in the column {column!r}. Fill it in, or delete the row.")
        return text

    def paths(self, column: str, home: Path) -> list[Path]:
        """Returns the file of each row; one file has one spelling: `x/../a.png` and its whole path are `a.png`."""
        files = [home / self.text(column, i) for i in range(len(self.rows))]
        windows = {
            path: Path(str(path).replace("\\", "/")) for path in files if "\\" in str(path) and not path.exists()
        }
        files = [windows.get(path, path) for path in files]
        found: dict[str, Path] = {}
        return [found.setdefault(os.path.abspath(path), Path(os.path.normpath(path))) for path in files]

    def number(self, column: str, i: int, is_flag: bool) -> float:
        """Returns the number in a cell, finite in float32, of a flag 0 or 1 (true, false); ValueError for another."""
        text = self.text(column, i)
        try:
            value = float({"true": 1, "false": 0}.get(text.lower(), text))
        except ValueError:
            value = np.nan
        if not (value in (0, 1) if is_flag else abs(value) <= base.LARGEST):
            expected = "0 or 1 was" if is_flag else "a finite number was"
            raise ValueError(f"{self.rows[i]} has {printable(text, 40)!r} in column {column!r}: {expected} expected.")
        return value

    def names(self, column: str, i: int, target: str, separator: str | None) -> list[str]:
        if target == "class":
            return [self.text(column, i)]
        parts = self.columns[column][i]
        if not isinstance(parts, (list, tuple, np.ndarray)):
            parts = [parts] if separator is None else _text(parts).split(separator)
        return [_text(part) for part in parts if _text(part)]


def _check_repeated(table: LabelTable) -> None:
    """Raises ValueError where two rows say different things of one file."""
    first_of: dict[Path, int] = {}
    for i, path in enumerate(table.files):
        first = first_of.setdefault(path, i)
        rows = f"than {table.rows[first]}. Keep one of the two."
        others = table.masks is not None and table.masks[i] != table.masks[first]
        if first != i and (others or np.any(table.labels[i] != table.labels[first])):
            raise ValueError(f"{table.rows[i]} has another label for {path.name!r} {rows}")
        if table.splits and table.splits[i] != table.splits[first]:
            raise ValueError(f"{table.rows[i]} has {path.name!r} in another split {rows}")


def read_columns(source: Any) -> tuple[dict[str, Sequence[Any]], str, int, Path]:
    """Returns the columns of a table by name, what it is called, the number of its first row, and its folder."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(expanded_path(source))
        if path.suffix.lower() == ".parquet":
            require_packages("A Parquet file", ("pyarrow",), "tables")
            from pyarrow import parquet

            with open(path, "rb") as stream:
                columns = _columns(parquet.read_table(stream))
            return columns, printable(path), 0, path.parent
        return _read_csv(path), printable(path), 2, path.parent  # row 1 is that of the names
    return _columns(source), "the table", 0, Path()


def _read_csv(path: Path) -> dict[str, Sequence[Any]]:
    """Returns the columns of a CSV file as lists of text; its separator is the most frequent in its first line."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            header = stream.readline()
            stream.seek(0)
            reader = csv.reader(stream, delimiter=max(",;\t", key=header.count), strict=True)
            names, *rows = reader
    except (csv.Error, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{printable(path)} cannot be read as a table in UTF-8 with a header: {error}.") from error
    _check_differ(names, printable(path))
    while rows and not rows[-1]:
        rows.pop()
    for i, row in enumerate(rows, start=2):
        surplus = [cell for cell in row[len(names) :] if cell.strip()]
        if surplus:
            found = f"{len(row)} cells, but the header has {len(names)} columns: no column is for {surplus[0]!r}"
            advice = "Put quotes around cells that contain the separator."
            raise ValueError(f"{printable(path)}, row {i} has {found}. {advice}")
    return {name: [row[i] if i < len(row) else "" for row in rows] for i, name in enumerate(names)}


def _columns(table: Any) -> dict[str, Sequence[Any]]:
    names = table if isinstance(table, dict) else getattr(table, "column_names", getattr(table, "columns", None))
    if names is None:
        wanted = "a .csv, .tsv or .parquet file, a pandas, polars or Arrow table, or a dict of columns"
        raise TypeError(f"source must be {wanted}, but {type(table).__name__} was given.")
    _check_differ(list(names), "The table")
    columns = {}
    for name in names:
        column = table[name]
        to_list = next((getattr(column, m) for m in ("to_pylist", "to_list", "tolist") if hasattr(column, m)), None)
        columns[name] = list(column) if to_list is None else to_list()
    lengths = sorted({len(column) for column in columns.values()})
    if len(lengths) > 1:
        raise ValueError(f"The columns of the table must be equally long, but their lengths are {lengths}.")
    return columns


def _check_differ(names: list[Any], where: str) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"{where} must have different names of columns, but it has {listing(names, 20)}.")


def check_columns(columns: Iterable[str], needed: Iterable[str], where: str) -> None:
    """Raises ValueError, which names the table `where`, for a column that it does not have."""
    for name in needed:
        if name not in columns:
            hint = did_you_mean(str(name), {str(known).lower(): str(known) for known in columns})
            raise ValueError(f"{where} has no column {name!r}, only {listing(list(columns), 20)}.{hint}")


def _text(cell: Any) -> str:
    """Returns the text of a cell without space around it, empty for missing values."""
    if cell is None or str(cell) == "<NA>" or cell != cell:  # pandas's missing value, which compares to no truth
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def splits_of(cells: Sequence[str], rows: Sequence[str]) -> list[str]:
    """Returns `"train"`, `"test"` or `"validation"` for each row; ValueError for a cell that names no split."""
    places = []
    for cell, row in zip(cells, rows, strict=True):
        place = base.split_of(cell)
        if place is None:
            raise ValueError(f"{row} has the split {printable(cell, 40)!r}: train, test or val was expected.")
        places.append(place[0])
    return places
