"""Texts of errors and warnings that keep the arguments which they name."""

from typing import Self


class Code(str):
    """A part of a message that is Python code: the name of an argument, an argument with a value, or a call."""


class Message(str):
    """The text of an error or a warning, which keeps its parts: the command line writes `Code` as options.

    Examples:
        >>> str(Message("Pass ", Code("overwrite=True"), "."))
        'Pass overwrite=True.'
    """

    parts: tuple[str, ...]

    def __new__(cls, *parts: str) -> Self:
        message = super().__new__(cls, "".join(parts))
        message.parts = parts
        return message


SKIP = Code('on_bad_image="skip"')  # what to do about images that cannot be read
