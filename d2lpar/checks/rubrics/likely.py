"""What exercise 12.3 asks for: the most likely word, without joining the scores."""

import torch

from ..judging import Case, Exercise, Mistake, ranks, same
from ..requirements import bytes_sent, extra_memory
from ..signs import both, gives, not_a_tensor, right, wrong

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def cases(rng):
    """Few and many words, equal scores, impossible words, three dtypes."""
    for n, N, width, kind, dtype in [
        (1, 3, 7, "", 0),
        (4, 0, 6, "no row", 0),
        (2, 4, 5, "", 0),
        (3, 5, 4, "equal scores", 0),
        (4, 3, 1, "", 2),
        (3, 6, 50, "some words impossible", 0),
        (4, 8, 400, "", 1),
        (4, 32, 2500, "all negative", 2),
        (2, 16, 3000, "equal scores", 0),
        (5, 16, 2000, "all negative", 2),
    ]:
        yield _case(rng, n, N, width, kind, DTYPES[dtype])


def _case(rng, n, N, width, kind, dtype):
    scores = torch.from_numpy(rng.normal(size=(N, n * width)))
    if kind == "equal scores":
        scores = (2 * scores).round()
    if kind == "all negative":
        scores = -scores.abs() - 1
    if kind == "some words impossible":
        scores[:, : 2 * width] = -torch.inf
    scores = scores.to(dtype)
    parts = scores.chunk(n, 1)
    first = torch.tensor([_places(row)[0] for row in scores], dtype=torch.int64)
    words = f"{ranks(n)}, {N} rows, {width} words each, {str(dtype)[6:]}"
    return Case(
        n,
        words + (f", {kind}" if kind else ""),
        inputs=[(part.clone(),) for part in parts],
        expected=[first] * n,
        facts={"scores": scores, "parts": parts, "N": N, "width": width},
        traced=(n, width) == (4, 2500),
    )


def _places(row):
    """Where the largest score stands, first to last."""
    return (row == row.max()).nonzero()[:, 0].tolist()


def _bytes(case):
    """Two numbers of eight bytes a row, to each other rank."""
    return 16 * case.facts["N"] * (case.n - 1)


def _memory(case):
    # where lists count, two rows of scores may be there as lists
    return 200 * case.facts["N"] + 2048 + 5 * case.noise


# What the usual mistakes give


def _local(case):
    """Each rank's own best, by its place among the rank's words."""
    return [part.argmax(1) for part in case.facts["parts"]]


def _own(case):
    width = case.facts["width"]
    return [part + r * width for r, part in enumerate(_local(case))]


def _place_only(case):
    """The place among the words of the rank that has it."""
    return [case.expected[0] % case.facts["width"]] * case.n


def _last(case):
    places = [_places(row)[-1] for row in case.facts["scores"]]
    return [torch.tensor(places)] * case.n


def _last_rank(case):
    """Of equal scores that of the last rank, and there the first."""
    width, found = case.facts["width"], []
    for row in case.facts["scores"]:
        ours = _places(row)
        found.append(next(p for p in ours if p // width == ours[-1] // width))
    return [torch.tensor(found)] * case.n


def _rounded(attempt):
    """The place went through a narrower dtype: it is right to 1 %, and not exact."""
    if not wrong(attempt) or not_a_tensor(attempt):
        return False
    wanted = attempt.case.expected[0].double()
    near = lambda x: bool(((x.double() - wanted).abs() <= 0.01 * wanted + 1).all())
    return wanted.numel() > 0 and wanted.max() > 256 and all(map(near, attempt.came))


def _other_dtype(attempt):
    return wrong(attempt) and all(
        torch.is_tensor(a) and same(a.long(), b)
        for a, b in zip(attempt.came, attempt.case.expected, strict=True)
    )


def _much_memory(attempt):
    case = attempt.case
    sent = max(attempt.run.bytes_sent)
    return max(attempt.run.peak_memory) > _memory(case) and sent <= _bytes(case)


def _joins(attempt):
    return max(attempt.run.bytes_sent) > _bytes(attempt.case)


def _many(fake):
    """Where there are several ranks, some rows, and several words on a rank."""

    def enough(attempt):
        facts = attempt.case.facts
        return attempt.case.n > 1 and facts["N"] > 0 and facts["width"] > 1

    return both(enough, gives(fake))


exercise = Exercise(
    "12.3",
    "The most likely word",
    cases,
    [bytes_sent(_bytes, exactly=False), extra_memory(_memory)],
    [
        Mistake(
            "own words",
            _many(_local),
            "Each rank answers for its own words, and numbers them from 0.",
            "The ranks must compare their best scores.",
        ),
        Mistake(
            "own best",
            _many(_own),
            "Each rank answers with the best of its own words.",
            "The ranks must compare their best scores.",
        ),
        Mistake(
            "no offset",
            _many(_place_only),
            "It is the place among the words of one rank, not among all words.",
            "Rank r has the words from r times V/n on.",
        ),
        Mistake(
            "last rank",
            _many(_last_rank),
            "Of equal scores on several ranks it takes the last rank's.",
            "`>=` lets a later one win, `>` does not.",
        ),
        Mistake(
            "last",
            _many(_last),
            "Of equal scores it takes the last, and the first is asked for.",
        ),
        Mistake(
            "another dtype",
            _other_dtype,
            "The words are right, but not as int64.",
            "`.long()` makes them so.",
        ),
        Mistake(
            "rounded",
            _rounded,
            "The number of the word was rounded on its way.",
            "bfloat16 counts to 256 without gaps, float32 to 2^24. Numbers of words "
            "have a dtype of their own.",
        ),
        Mistake(
            "joined",
            both(right, _joins),
            "It is right, and sends more than two numbers a row to each other rank.",
            "A rank's best score and its place are all that the others need.",
        ),
        Mistake(
            "memory",
            both(right, _much_memory),
            "It is right, and makes a tensor as large as the scores.",
            "`max` and `argmax` need no copy. A comparison of all scores is one.",
        ),
        Mistake("no tensor", not_a_tensor, "It does not return a tensor."),
    ],
)
