"""The napkin pages, worked out once more from what they tell the reader.

Nothing of the course's code is used, only arithmetic. A `#` in a piece of a sentence
stands for the figure; rates in bytes/s, times in the unit that the page prints.
"""

import json
import re
from math import ceil, exp, log2, sqrt
from pathlib import Path

import pytest

CHAPTERS = Path(__file__).parents[1] / "chapters"

NVLINK = 352e9  # chapters 03 and 05: 78 % of the data sheet's 450 GB/s
CARD = 48e9  # chapter 04: 96 % of 400 Gbit/s
WAIT, FAR = 6e-6, 20e-6  # chapter 04: alpha by NVLink and through the network
LARGE = 400e12  # FLOP/s of an H100 in large trainings, Grattafiori et al. 2024
SHEET = 0.4 * 989e12  # the same as 40 % of NVIDIA's data sheet
LLAMA, WORDS = 8.03e9, 128_256  # Llama 3 8B, Grattafiori et al. 2024
ROWS = 8192 * 8192 * 2  # bytes of 8,192 tokens of width 8,192


def ring(n):
    """How often the bytes of an all-reduce pass each link."""
    return 2 * (n - 1) / n


# 02, by Brown et al. 2020: 12 h^2 in each of 32 blocks, 50,257 words, 2,048 positions
gpt = 12 * 32 * 4096**2 + (50_257 + 2048) * 4096
gpt_token = 34 * 32 * 4096 + 4 * 50_257
# 05, Grattafiori et al. 2024: queries and output, keys and values, a gated MLP
llama_layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336
# 06: a ring in a node, for 16 GB; a ring between nodes, for the eighth of a card
inside = ring(8) * 16e9 / NVLINK + 14 * WAIT
between = ring(8) * 2e9 / CARD + 14 * FAR
# 07: three billion parameters in two bytes
work = 6 * 3e9 * 8192 / SHEET
in_node = ring(8) * 6e9 / NVLINK
of_cards = ring(16) * 6e9 / 8 / CARD
# 08: on 64 machines with 2,048 tokens each
exposed = ring(64) * 2 * LLAMA / CARD - 4 * LLAMA * 2048 / LARGE
# 09: two bytes a parameter, c of 8,192 tokens
port, c = 2 * LLAMA / CARD, 6 * LLAMA * 8192 / LARGE
average = ring(8) * 2 * LLAMA / 1.2e9
# 11: the U-Net of Ronneberger et al. 2015, padded: four skips, and the bottom's output
skips = sum(64 * 2**k * (512 >> k) ** 2 for k in range(5)) * 8 * 2
# 12: h^2 of queries and output, an eighth of it for keys and values, three of the MLP;
# tokens see earlier ones only, so scores and their use take half of 4 T^2 h
h = 8192
block = 2 * h * (2 * h * h + 2 * h * h / 8 + 3 * h * 28_672) + 2 * h**3
products, one_sum = block / 8 / 500e12, ring(8) * ROWS / NVLINK
# Korthikanti et al. 2022, all scores: 24 h^2 + 4 T h for each token, three times
a100 = 3 * 8192 * (24 * 6144**2 + 4 * 2048 * 6144) / 8 / 271e12
a100 += 4 * ring(8) * 2 * 8192 * 6144 / (NVLINK / 450 * 300)  # by its data sheet
# 14: Krizhevsky et al. 2012 in one tower: five convolutions, three dense layers
alexnet = 55**2 * 96 * 363 + 27**2 * 256 * 2400
alexnet += 13**2 * (384 * 2304 + 384 * 3456 + 256 * 3456)
alexnet += 9216 * 4096 + 4096**2 + 4096 * 1000
# 19: Grattafiori et al. 2024: 419 unexpected stops of 16,384 GPUs in 54 days
life = 16_384 * 54 * 86_400 / 419
M = life / 100_000
tau = sqrt(2 * M * 30)
daly = M * exp(300 / M) * (exp((tau + 30) / M) - 1) / tau  # Daly 2006, stretched time

FIGURES = [
    (1, "and takes # us on an H100", 2 * (4096**2 + 2 * 64 * 4096) / 3.35e12 * 1e6),
    (1, "on an H100 and # ms on a B200", 30e9 / 8e12 * 1e3),
    (1, "PCIe 5 moves them in # ms", 256 * 224 * 224 * 3 / 55.4e9 * 1e3),
    (1, "instead of #.", ceil(4096 / (4096 * 3.35 / 791.5 - 2))),  # D / (D / r - 2)
    (2, "billion parameters are # GB", 16 * gpt / 1e9),
    (2, "so # tokens have room", (141e9 - 16 * gpt) / gpt_token),  # H200's data sheet
    (2, "6,144 tokens take # s", 6 * gpt * 6144 / SHEET),
    (2, "the update # ms", 28 * gpt / 4.8e12 * 1e3),
    (3, "the ring takes # ms in a node", ring(8) * 16e9 / NVLINK * 1e3),
    (3, "GB/s # ms over 64 GPUs", ring(64) * 16e9 / CARD * 1e3),
    (3, "it computes for # ms, and adds", 6 * 12 * 8192**3 / 8 / SHEET * 1e3),
    (3, "N = 2D/3 = # tokens", 2 * 8192**2 / (3 * 8192)),
    (4, "through the network card # MB", FAR * CARD / 1e6),
    (4, "They take # us by NVLink", (WAIT + ROWS / NVLINK) * 1e6),
    (4, "by NVLink and # ms through", (FAR + ROWS / CARD) * 1e3),
    (4, "one after the other, take # ms", 1000 * (FAR + 1e5 / CARD) * 1e3),
    (5, "and by a ring # s", 63 * (FAR + 2 * LLAMA / 64 / CARD)),
    (5, "on the 64 machines at # MB", 64 * FAR * CARD / 1e6),
    (5, "H100 takes # ms", 7 * (WAIT + 2 * llama_layer / 8 / NVLINK) * 1e3),
    (5, "collects 64 of them in # ms", 63 * FAR * 1e3),
    (6, "the ring # ms", (ring(8) * 1e9 / NVLINK + 14 * WAIT) * 1e3),
    (6, "doubling # us", log2(8) * (WAIT + 2**16 / NVLINK) * 1e6),
    (6, "so # ms one after the other", (inside + between) * 1e3),
    (6, "a card each take # ms", (ring(64) * 2e9 / CARD + 126 * FAR) * 1e3),
    (7, "the GPUs compute # % of", 100 * work / (work + in_node)),
    (7, "go by, and # % remain", 100 * work / (work + in_node + of_cards)),
    # 4 P tokens / FLOP/s as long as both sums
    (7, "an eighth, needs #.", (in_node + of_cards) / (4 * 3e9 / SHEET)),
    (8, "They need # tokens", 7 / 8 * LARGE / NVLINK),
    (8, "So # ms are exposed", exposed * 1e3),
    (8, "now # % of a step", 100 / (1 + 4 * 6 * LLAMA * 2048 / LARGE / exposed)),
    (9, "each way, # s for a step", 2 * 64 * port),
    (9, "A ring takes # s", ring(64) * port),
    (9, "computes for # % of the step", 100 * c / (c + 2 * port)),
    (9, "so a site computes for # % of", 100 * 500 / (500 + average)),
    # two bytes for each layer's input, 34 inside one, four for each score of a word
    (10, "of all words take # GB", (h * h * (2 * 80 + 34) + 4 * h * WORDS) / 1e9),
    (10, "slower NVLink, in # ms", 7 / 8 * 2 * 70.6e9 / 80 / NVLINK * 1e3),
    (10, "The step takes # s instead", 8 * 70.6e9 * 8192 / LARGE),
    (11, "idle for # % of", 100 * (1 - 1 / ceil(16 * 70.6 / 80))),
    (11, "and # ms over a network card, and", ROWS / CARD * 1e3),
    (11, "a step computes for # s", 6 * 70.6e9 * 8192 / LARGE),
    (11, "Over a network card they take # ms", 2 * skips / CARD * 1e3),
    (12, "ms: # % of the time", 100 * 2 * one_sum / (products + 2 * one_sum)),
    (12, "where a sum takes # ms", ring(16) * ROWS / CARD * 1e3),
    (12, "That makes # MB", (10 + 24 / 8) * h * h / 1e6),
    (12, "and four sums, make # ms", a100 * 1e3),
    (13, "It takes # micro-batches to wait", 9 * (8 - 1) + 1),
    (13, "A stage computes for # s", 6 * 70e9 / 8 * 8192 / LARGE),  # Llama 2 70B
    (13, "# GB of activations", 34 * 80 * 8192**2 / 1e9),
    (14, "as long, # us", ring(8) * 2 * 4096 * (9216 + 4096) / NVLINK * 1e6),
    (14, "backward pass takes # us", 4 * alexnet * 128 / LARGE * 1e6),
    (14, "sends its gradient in # ms", ring(8) * 2 * 4096 * WORDS / NVLINK * 1e3),
    (15, "this takes # s of a step", 127 / 128 * 6 * 405e9 / 128 / CARD),
    (15, "of a step of # s", 6 * 405e9 * 2048 * 8192 / 16_384 / LARGE),
    (15, "crosses a border in # ms", 2 * 8192 * 16_384 / CARD * 1e3),
    (15, "left, and it is # %", 100 * 3 / (8 + 3)),
    # GPT-3, Brown et al. 2020: 175 billion, width 12,288, 300 billion tokens
    (16, "on NVLink, and # % across cards", 100 * 7 * LARGE / (3 * 12_288 * CARD)),
    (16, "# s, by 6 P T alone", 6 * 175e9 * 3072 / LARGE),
    (16, "and # million", 6 * 175e9 * 300e9 / LARGE / 3600 * 2 / 1e6),  # GPU hours x 2
    (17, "A piece needs # tokens", 2 * 8 / 32 * LARGE / NVLINK),
    (17, "the products at # tokens", LLAMA / (32 * 4096)),
    (17, "they are # % of the work", 100 / (1 + LLAMA / (32 * 4096) / 2**20)),
    (17, "logits of the loss # GB", 4 * WORDS * 2**20 / 128 / 1e9),
    # DeepSeek-V3 2024: 671 billion parameters, 37 of them used, h 7,168, 8 experts
    (18, "A token uses # % of", 100 * 37 / 671),
    (18, "at least # GPUs", ceil(16 * 671e9 / 80e9)),
    (18, "the exchange # ms", 4096 * 8 * 4 * 7168 / CARD * 1e3),
    (18, "in one byte it takes # ms", 4096 * 4 * 7168 * (1 + 2) / CARD * 1e3),
    (19, "same habits loses # %", 100 * (sqrt(60 * 1024 / life) + 300 * 1024 / life)),
    (19, "the estimate says # %", 100 * (sqrt(60 / M) + 300 / M)),
    (19, "and Daly's formula # %", 100 * (1 - 1 / daly)),
    (19, "bytes for each, are # MB", 14 * 405e9 / 16_384 / 1e6),
]


def page(chapter):
    """The text from the page's heading to the next one, without comments."""
    (path,) = CHAPTERS.glob(f"{chapter:02}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    told = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    text = re.sub(r"<!--.*?-->", "", "\n".join(told), flags=re.DOTALL)
    _, found, rest = text.partition("# On a napkin\n")
    assert found, f"{path.name} has no page `On a napkin`"
    return " ".join(re.split(r"^#+ ", rest, flags=re.MULTILINE)[0].split())


@pytest.mark.parametrize("chapter", sorted({row[0] for row in FIGURES}))
def test_a_napkin_page_has_the_figures_of_plain_arithmetic(chapter):
    text, wrong = page(chapter), []
    for _, piece, ours in (row for row in FIGURES if row[0] == chapter):
        before, after = map(re.escape, piece.split("#"))
        found = re.findall(rf"{before}(\d[\d,]*(?:\.\d+)?){after}", text)
        if len(found) != 1:
            wrong.append(f"`{piece}` is found {len(found)} times")
            continue
        digits = found[0].replace(",", "")
        half_a_unit = 0.5 * 10 ** -len(digits.partition(".")[2])
        if abs(ours - float(digits)) > max(half_a_unit, 0.01 * abs(ours)):
            wrong.append(f"`{piece}` is {found[0]} on the page, {ours:.5g} here")
    assert not wrong, "\n".join(wrong)
