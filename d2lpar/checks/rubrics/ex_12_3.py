"""12.3 The most likely word."""

from functools import partial

import torch

from .. import requirements as rows
from .. import signs
from ..equality import same
from ..judging import Case, Exercise, ranks
from ..signs import breaks, wrong

SIZES = (  # ranks, rows, words of a rank, what is odd about the scores, their dtype
    (1, 3, 7, "", torch.float32),
    (4, 0, 6, "no row", torch.float32),
    (2, 4, 5, "", torch.float32),
    (3, 5, 4, "equal scores", torch.float32),
    (4, 3, 1, "", torch.float64),
    (3, 6, 50, "some words impossible", torch.float32),
    (4, 8, 400, "", torch.bfloat16),
    (4, 32, 2500, "all negative", torch.float64),
    (2, 16, 3000, "equal scores", torch.float32),
    (5, 16, 2000, "all negative", torch.float64),
)
CLOSE = torch.tensor([[1.0, 0.0, 1 + 1e-12, 0.5]], dtype=torch.float64)


def cases(rng):
    """Few and many words, equal scores, impossible words, three dtypes."""
    yield case_of(2, CLOSE, "nearly equal scores")
    for n, N, width, kind, dtype in SIZES:
        scores = torch.from_numpy(rng.normal(size=(N, n * width)))
        if kind == "equal scores":
            scores = (2 * scores).round()
        if kind == "all negative":
            scores = -scores.abs() - 1
        if kind == "some words impossible":
            scores[:, : 2 * width] = -torch.inf
        yield case_of(n, scores.to(dtype), kind)


def case_of(n, scores, kind):
    """The scores of all words are cut by words."""
    (N, words), dtype = scores.shape, str(scores.dtype)[6:]
    text = f"{ranks(n)}, {N} rows, {words // n} words each, {dtype}"
    return Case(
        n,
        f"{text}, {kind}" if kind else text,
        [(part.contiguous(),) for part in scores.chunk(n, 1)],
        traced=(n, words) == (4, 10_000),
        truth=partial(likely, n, scores),
    )


def likely(n, scores, slip=""):
    """Per rank, the word with the highest score of each row."""
    width = scores.shape[1] // n
    own = [part.argmax(1) for part in scores.chunk(n, 1)]
    if slip == "own words":
        return own
    if slip == "own best":
        return [place + r * width for r, place in enumerate(own)]
    scores = scores.float() if slip == "narrow" else scores
    choose = max if slip == "last" else min
    words = []
    for row in scores:
        places = (row == row.max()).nonzero()[:, 0].tolist()
        if slip == "last rank":
            places = [p for p in places if p // width == places[-1] // width]
        words.append(choose(places))
    words = torch.tensor(words, dtype=torch.int64)
    if slip == "no offset":
        words %= width
    if slip == "rounded":
        words = words.to(scores.dtype).long()
    return [words] * n


def count(case):
    """Rows of scores."""
    return len(case.inputs[0][0])


BYTES = rows.bytes_sent(lambda case: 16 * count(case) * (case.n - 1), exactly=False)
# where lists count, two rows of scores may be there as lists
MEMORY = rows.extra_memory(lambda case: 200 * count(case) + 2048 + 5 * case.noise)

exercise = Exercise(
    "12.3",
    cases,
    [BYTES, MEMORY],
    {
        "no tensor": signs.not_a_tensor,
        **signs.slips("own words", "own best", "no offset"),
        **signs.slips("rounded", "narrow"),
        **signs.slips_somewhere("last rank", "last"),  # only equal scores show it
        "another dtype": lambda a: (
            wrong(a) and same([x.long() for x in a.came], a.case.expected)
        ),
        "joined": breaks(BYTES),
        "memory": breaks(MEMORY),
    },
)
