"""Rows and pairs that print as tables, whatever names strangers have put into them."""

import io
import re
import time

import numpy as np
import pytest
from rich.console import Console

from keras_vit._terminal import ClassesResult, ProgressBar, Table, as_text, pairs_table

pytestmark = pytest.mark.once

HOSTILE = "[bold]a[/bold] [/] \x1b]0;title\x07\x1b[31mred\nnext"


def on_a_terminal(renderable):
    console = Console(file=io.StringIO(), force_terminal=True, width=200, color_system="truecolor")
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize("draw", [as_text, on_a_terminal])
def test_names_are_shown_as_they_are_and_control_nothing(draw):
    for table in (Table([{"name": HOSTILE, HOSTILE: 1}]), pairs_table(HOSTILE, {"name": HOSTILE, "names": [HOSTILE]})):
        shown = draw(table)
        assert r"[bold]a[/bold] [/] \x1b]0;title\x07\x1b[31mred\nnext" in shown
        assert "\x1b]" not in shown and "\x1b[31m" not in shown


def test_a_table_is_its_rows():
    rows = Table(
        [{"name": "a", "params": 1_500_000, "rate": 0.001, "share": 2.0, "none": None, "inferred": ["params"]}]
    )
    rows.columns = {"name": "name", "params": "parameters", "rate": "rate", "share": "share", "none": "none"}
    text = str(rows)
    assert rows == [dict(rows[0])]
    assert text.split("\n")[-3].split() == ["a", "~1.5", "M", "0.001", "2.00", "-"]
    assert "~ deduced, not seen" in text and "parameters" in text and str(Table()) == ""


def test_the_worst_classes_are_a_number_of_them():
    result = ClassesResult()
    result.per_class, result.class_names = np.array([0.5, 0.1, np.nan]), None
    assert [row["class"] for row in result.class_table()] == ["1", "0"] and len(result.class_table(worst=1)) == 1
    with pytest.raises(ValueError, match="worst must be a whole number"):
        result.class_table(worst=-1)


def test_pairs_without_a_value_are_left_out():
    text = as_text(pairs_table("title", {"long_name": 0, "flag": False, "empty": "", "nothing": None, "no_names": []}))
    assert "title" in text and "long name" in text and "False" in text
    assert "empty" not in text and "nothing" not in text and "no names" not in text
    many = as_text(pairs_table("", {"names": [f"name {i}" for i in range(20)]}))
    assert sum("name " in line for line in many.split("\n")) == 20


@pytest.mark.parametrize("columns", [30, 60, 80, 120, 200])
def test_tables_fit_the_width_that_they_are_given(columns, monkeypatch):
    """In a pipe as on a terminal; what has no room is named, not squeezed."""
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [{"name": "a/long-name" * 5, "params": 86_567_656, "text": "words " * 9, "top1": 84.5, "size": "393.69 MiB"}]
    text = str(Table(rows))
    assert max(map(len, text.splitlines())) <= columns and "a/long" in text
    assert all(title in text for title in rows[0])
    assert max(map(len, as_text(pairs_table("title", rows[0])).splitlines())) <= columns


def test_a_bar_shows_rate_and_time_left(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    with ProgressBar("Embedding", 3, stays=True) as bar:
        for _ in bar.track(range(3)):
            time.sleep(0.02)
    assert re.search(r"3/3\S* [\d.]+/s .*0:00:00", capsys.readouterr().err)
