"""Text from strangers on a terminal."""

import pytest

from keras_vit._arguments import check_class_names, did_you_mean, pair, printable, whole_numbers

pytestmark = pytest.mark.once


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
        ("", ""),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert printable(text) == shown
    shown.encode()  # what is shown can always be written


@pytest.mark.parametrize("text", ["a b", "[red]", "naïve 日本語\u3000 می\u200cخواهم", "👩\u200d🔬", "c\u00a0d"])
def test_what_is_harmless_stays(text):
    assert printable(text) == text


def test_what_is_of_another_type_is_refused():
    for size in ((float("inf"), 8), True, "ab"):
        with pytest.raises(TypeError, match="size must be an integer or a pair"):
            pair("size", size)
    with pytest.raises(TypeError, match="top must be a whole number"):
        whole_numbers("top", True, 1)
    for names in ("abc", 3):
        with pytest.raises(TypeError, match="class_names must be a list of strings"):
            check_class_names(names, 3)


def test_other_objects_and_long_text():
    assert printable(ValueError("a\nb")) == r"a\nb"
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


def test_at_most_five_names_are_suggested():
    assert did_you_mean("a", {f"a{i}": f"A{i}" for i in range(9)}).count("'A") == 5
