"""12.3 The most likely word: most_likely(scores)."""

import torch

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, ranks
from d2lpar.checks.varying import mirror

ex = Exercise("12.3", reference="likely_reference")
FLOAT, LONG, SHORT = torch.float32, torch.float64, torch.bfloat16
LOW, NEGATIVE, EQUAL = "impossible or very low", "all negative", "equal scores"
# Ranks, rows, words of a rank, what is odd about the scores, their dtype
SIZES = [(1, 3, 7, "", FLOAT), (4, 0, 6, "no row", FLOAT), (2, 4, 5, "", FLOAT)]
SIZES += [(3, 5, 4, EQUAL, FLOAT), (4, 3, 1, "", LONG)]
SIZES += [(3, 6, 50, "some words impossible", FLOAT), (3, 4, 5, LOW, FLOAT)]
SIZES += [(2, 4, 5, LOW, SHORT), (4, 4, 1, LOW, LONG), (4, 8, 400, "", SHORT)]
SIZES += [(4, 32, 2500, NEGATIVE, LONG), (2, 16, 3000, EQUAL, FLOAT)]
SIZES += [(5, 16, 2000, NEGATIVE, LONG)]
NEAR = [1.0, 0.0, 1 + 1e-12, 0.5], [1e299, 1e300, 0.0, 1e301]  # alike in float32


@ex.cases
def cases(rng, reference):
    """Few and many words, equal scores, impossible words, three dtypes."""
    yield case_of(reference, 2, torch.tensor(NEAR, dtype=LONG), "nearly equal scores")
    for n, N, width, kind, dtype in SIZES:
        scores = torch.from_numpy(rng.normal(size=(N, n * width)))
        if kind == EQUAL:
            scores = (2 * scores).round()
        if kind == NEGATIVE:
            scores = -scores.abs() - 1
        if kind == "some words impossible":
            scores[:, : 2 * width] = -torch.inf
        if kind == LOW:
            lowest = torch.tensor([-1e30, torch.finfo(dtype).min]).to(LONG)
            scores[:] = lowest.repeat(N)[:N, None]
            scores[:, :-1] = -torch.inf
            scores[: N // 2, width:] = scores[: N // 2, -1:]
        yield case_of(reference, n, scores.to(dtype), kind)


def case_of(reference, n, scores, kind):
    """The scores of all words are cut by words."""
    (N, words), dtype = scores.shape, str(scores.dtype)[6:]
    parts = [part.contiguous() for part in scores.chunk(n, 1)]
    text = f"{ranks(n)}, {N} rows, {words // n} words each, {dtype}"
    text = f"{text}, {kind}" if kind else text
    inputs, found = [(part,) for part in parts], [reference(parts).long()] * n
    return Case(n, text, inputs, found, traced=(n, words) == (4, 10_000))


given = lambda case: torch.cat([scores for (scores,) in case.inputs], 1)
count = lambda case: len(case.inputs[0][0])
highest = lambda case: given(case).amax(1, keepdim=True)
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    no_row=lambda case: count(case) == 0,
    one_word_of_a_rank=lambda case: given(case).shape[1] == case.n > 1,
    equal=lambda case: ((given(case) == highest(case)).sum(1) > 1).any(),
    a_rank_without_possible_words=lambda case: any(
        scores.isinf().all(1).any() for (scores,) in case.inputs
    ),
    very_low=lambda case: (highest(case) == torch.tensor(-1e30, dtype=FLOAT)).any(),
    lowest=lambda case: (highest(case) == torch.finfo(given(case).dtype).min).any(),
    no_float32=lambda case: (given(case).double() == 1e300).any(),
)
# where lists count, two rows of scores may be there as lists
ex.at_most(
    bytes=lambda case: 16 * count(case) * (case.n - 1),
    memory=lambda case: 200 * count(case) + 2048 + 5 * case.noise,
)

# Texts of the answer, for edits

GATHER, BEST, LAST = "ring_all_gather(parts)", "best, place = scores.max(1)", ".long()"
OFFSET, CHOICE = "place + r * scores.shape[1]", "best.argmax(0, keepdim=True)"
NUMBERS, START = "torch.stack([best.double(), words.double()])", "n, r = dist"

# Mistakes of its own

ex.slip("own words", {GATHER: "return words"}).says("""
    Each rank answers with the best of its own words.
    Hint: How does a rank learn that another has a better word? The ranks must compare
    their best scores with each other.
""")
ex.slip("own words", {GATHER: "return place"})
ex.slip("no offset", {OFFSET: "place"}).says("""
    It returns the place among the words of one rank, not among all words.
    Hint: Which number has the first word of this rank? That of rank r has the number
    r V/n, so add this to the place.
""")
narrow = {NUMBERS: "torch.stack([best.float(), words.float()])"}
ex.slip("rounded", narrow).says("""
    It rounds scores or numbers of words before they are compared or sent.
    Hint: What does the dtype that travels hold exactly? bfloat16 holds all whole
    numbers only up to 256, and float32 up to 2^24. Scores in float64 need float64 on
    their way, too.
""")
ex.slip("rounded", {NUMBERS: "torch.stack([best, words.to(best.dtype)])"})
ex.slip("rounded", {BEST: BEST.replace("scores", "scores.float()")})
later = f"n - 1 - best.flip(0).{CHOICE[5:]}"
ex.slip("ties", {CHOICE: later}, somewhere=True).says("""
    Of equal scores it does not always take the word with the smallest number.
    Hint: Which of the ranks wins where two have the same score? It should be the one
    with the smaller numbers of words, in whichever order you compare them.
""")
last_place = "best, place = scores.flip(1).max(1); place = scores.shape[1] - 1 - place"
ex.slip("ties", {BEST: last_place, CHOICE: later})
ex.slip("ties", {BEST: last_place})

# Answers to which the general sentences apply

joined = f"return d2lpar.tensor_parallel.Join.apply(scores, 1).argmax(1)\n    {START}"
ex.wrong("costly", {START: joined})
ex.wrong("costly", {BEST: BEST.replace("scores", "scores.clone()")})
low = f"torch.stack([best.double().clamp(min=-1e30), {NUMBERS[28:]}"
ex.wrong("wrong", {NUMBERS: low})
ex.wrong("wrong", {LAST: ""})
ex.wrong("wrong", {LAST: ".tolist()"})
top = "dist.all_reduce(top := best.clone().double(), dist.ReduceOp.MAX); "
top += "words = torch.where(best == top, words, 2**62); "
top += "dist.all_reduce(words, dist.ReduceOp.MIN); return words"
ex.right({GATHER: top})
ex.right({CHOICE: "best.double().max(0, keepdim=True).indices"})

ex.variation(
    "b",
    varied="who holds what: the first words are on the last rank",
    differs="It assumes that rank 0 has the first words, not the last rank.",
    part=mirror,
    reads={"r V/n": "(n-1-r) V/n"},
)
