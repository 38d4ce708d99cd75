"""The errors that a run raises: each names the rank, the call and the line."""


class RankError(RuntimeError):
    """A run ended because of one rank; the message has a line for every rank.

    Attributes: `rank` (the culprit, None where no single rank is), `call` (text of
    the communication call it was in, or None), `line` ("file:line", or None) and
    `run` (the partial `Run`, whose timeline can be plotted).
    """

    def __init__(self, message, rank=None, call=None, line=None, run=None):
        super().__init__(message)
        self.rank, self.call, self.line, self.run = rank, call, line, run


class DeadlockError(RankError):
    """Ranks wait for each other, or for something that will never come."""


class MismatchError(RankError):
    """Ranks meant to take part in one communication describe it differently."""
