"""The two kinds of failure a user meets, each with one sentence as its message.

Whoever knows the cause raises one of these; the command line prints the sentence and chooses the
exit code. Anything else that escapes is a bug of ours.
"""


class InputError(ValueError):
    """What the user gave cannot be used: the message names it and says what was expected."""


class WorkError(RuntimeError):
    """The input was fine but the work failed: the message says what was lost and how to go on."""
