"""The error of a file that cannot be had."""


class DownloadError(OSError):
    """A file could not be had. The message says what was tried, what the answers were, and what can be done.

    Attributes:
        attempts: Addresses and files that were tried, each with its answer.
        message: The first line.
        advice: The last ones; empty where there is nothing to say.
    """

    def __init__(self, message: str, attempts: list[tuple[str, str]] | None = None, advice: str = "") -> None:
        self.message, self.advice = message, advice
        self.attempts = attempts or []
        listing = [f"  {where}\n    {answer}" for where, answer in self.attempts]
        super().__init__("\n".join([message, *listing, *([advice] if advice else [])]))
