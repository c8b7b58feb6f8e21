"""What goes wrong, with what to do about it."""

from __future__ import annotations


class Error(Exception):
    """A failure that Spillway explains.

    Attributes:
        message: what is wrong, and where.
        hint: what would do, with settings as keywords; may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class InputError(Error, ValueError):
    """Something given is wrong: a name, a value, a file, settings that do not go together."""


class FitError(Error):
    """It does not fit: which memory, how much is lacking, and what would make it fit."""


class MachineError(Error, RuntimeError):
    """This computer failed: a full disk, a missing program, a drive that reports an error."""
