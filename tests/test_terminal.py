"""Text from strangers on a terminal: escaped, and as rows and pairs that print as tables."""

import dataclasses
import io
import json
import re
import time

import numpy as np
import pytest
from rich.console import Console

from keras_vit._arguments import did_you_mean, printable, whole_numbers
from keras_vit._terminal import PlainData, ProgressBar, Table, as_text, pairs_table

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


def test_a_row_may_lack_what_others_have():
    assert str(Table([{"name": "a"}, {"size": 2}])).split()[-4:] == ["a", "-", "-", "2"]


def test_json_has_no_infinite_numbers():
    @dataclasses.dataclass
    class Figures(PlainData):
        loss: float
        shares: np.ndarray

    plain = Figures(float("inf"), np.array([0.5, -np.inf, np.nan])).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == {"loss": None, "shares": [0.5, None, None]}


def test_whole_numbers_name_their_argument():
    for top in (True, 5.0, None, (1, 2.5)):
        with pytest.raises(TypeError, match="top must be a whole number"):
            whole_numbers("top", top, 1)


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("red\x1b[31m", r"red\x1b[31m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("C1 \x9b31m", r"C1 \x9b31m"),
        ("two\r\nlines\tand\x00nothing\x7f", r"two\r\nlines\tand\x00nothing\x7f"),
        ("line\u2028paragraph\u2029", r"line\u2028paragraph\u2029"),
        ("turned \u202egpj.exe", r"turned \u202egpj.exe"),
        ("half \ud83d pair", r"half \ud83d pair"),
        ("private \ue000, unassigned \U000e0fff", r"private \ue000, unassigned \U000e0fff"),
        (ValueError("a\nb"), r"a\nb"),
        *((text, text) for text in ("", "a b", "[red]", "naïve 日本語\u3000 می\u200cخواهم", "👩\u200d🔬", "c\u00a0d")),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert printable(text) == shown
    shown.encode()  # what is shown can always be written


def test_long_text_is_cut():
    assert printable("abcdef", 3) == "abc ..."
    assert printable("abc", 3) == "abc"


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("fine_tune", " Did you mean 'finetune'?"),
        ("INFO", " Did you mean 'info'?"),
        ("i", " Did you mean 'info' or 'inspect' or 'finetune' or 'list'?"),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_names_that_may_be_meant(name, question):
    assert did_you_mean(name, {known: known for known in ("info", "inspect", "finetune", "list")}) == question
