"""What a report says of a wrong outcome that no mistake of its exercise explains."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from d2lpar.checks import hints, signs
from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.hints import WRONG, usual_mistake
from d2lpar.checks.judging import Attempt, Case
from d2lpar.checks.relations import FORMS, RELATIONS, VAGUE, _equal, relation
from d2lpar.checks.requirements import untouched

EXERCISE = Exercise("99.2", title="Anything")
UNEVEN = torch.tensor([0.5, 2.0, 0.3, 3.0], dtype=torch.float64)


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """An error of a relation is raised."""
    monkeypatch.setattr(signs, "STRICT", True)


def drawn(*shape):
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=made, dtype=torch.float64)


def matrices(n):
    """What is right on n ranks: one matrix each."""
    return [drawn(3, 4) + r for r in range(n)]


def tried(wrong, sizes=(2, 3, 4), right=matrices, root=1):
    """Attempts in which `wrong(what is right on each rank, rank)` came."""
    made = []
    for n in sizes:
        inputs = [(drawn(5, 2) * (r + 2), drawn(4)) for r in range(n)]
        case = Case(n, f"{n} ranks", inputs, right(n), {"root": root % n})
        attempt = Attempt(case, args=inputs, agrees=EXERCISE.agrees)
        attempt.came = [wrong(case.expected, r) for r in range(n)]
        attempt.right = attempt.gives(case.expected)
        made.append(attempt)
    return [attempt for attempt in made if not attempt.right]


def sentence(text):
    return f"Wherever the outcome is wrong, what came {text}."


CAME = {
    "has the right values, but the wrong type or dtype": lambda x, r: x[r].float(),
    "has the right values, but the wrong shape": lambda x, r: x[r].reshape(4, 3),
    "is right in its first digits only": lambda x, r: x[r].float().double(),
    "is not a number (NaN)": lambda x, r: x[r] * torch.nan,
    "is zero": lambda x, r: 0 * x[r],
    "is an argument as it was before the call": lambda x, r: drawn(5, 2) * (r + 2),
    "is the transpose of what was expected": lambda x, r: x[r].T,
    "has the opposite sign": lambda x, r: -x[r],
    "is twice what was expected": lambda x, r: 2 * x[r],
    "is half of what was expected": lambda x, r: x[r] / 2,
    "is n times what was expected, for n ranks": lambda x, r: x[r] * len(x),
    "is 1/n of what was expected, for n ranks": lambda x, r: x[r] / len(x),
    "is B times what was expected, for B rows": lambda x, r: 5 * x[r],
    "is 1/B of what was expected, for B rows": lambda x, r: x[r] / 5,
    "is too large by exactly one": lambda x, r: x[r] + 1,
    "is too small by exactly one": lambda x, r: x[r] - 1,
    "has an argument added once too often": lambda x, r: x[r] + drawn(4),
    "has an argument added n-1 times too often": (
        lambda x, r: x[r] + (len(x) - 1) * drawn(4)
    ),
    "lacks an argument, which should be added": lambda x, r: x[r] - drawn(4),
    "is what rank 0 should have": lambda x, r: x[0],
    "on rank r is what rank r+1 should have": lambda x, r: x[(r + 1) % len(x)],
    "on rank r is what rank r-1 should have": lambda x, r: x[r - 1],
    "on rank r is what rank n-1-r should have": lambda x, r: x[-1 - r],
    "on rank r is what rank r - root should have": lambda x, r: x[r - 3 % len(x)],
    "on rank r is what rank r + root should have": lambda x, r: x[(r + 3) % len(x)],
    "is in reverse order": lambda x, r: x[r].flip(0),
    "is shifted by one place": lambda x, r: x[r].roll(1, 0),
    "is shifted back by one place": lambda x, r: x[r].roll(-1, 0),
    "has its columns in reverse order": lambda x, r: x[r].flip(1),
    "has its columns shifted by one": lambda x, r: x[r].roll(1, 1),
    "has its columns shifted back by one": lambda x, r: x[r].roll(-1, 1),
    "has the right elements in another order": lambda x, r: x[r][:, [1, 0, 2, 3]],
    "is too large": lambda x, r: x[r] + x[r].abs(),
    "is too small": lambda x, r: x[r] - x[r].abs() - 0.1,
    "has another shape than what was expected": lambda x, r: x[r][:1] * 3,
}


@pytest.mark.parametrize("text", FORMS | RELATIONS | VAGUE)
def test_a_relation_is_told_where_it_holds_in_every_call(text):
    sizes, root = ((4, 5, 7), 3) if "root" in text else ((2, 3, 4), 1)
    attempts = tried(CAME[text], sizes, root=root)
    assert attempts and relation(attempts, EXERCISE).startswith(sentence(text))


@pytest.mark.parametrize("text", FORMS | RELATIONS | VAGUE)
def test_a_relation_is_not_told_if_one_call_is_wrong_otherwise(text):
    sizes, root = ((4, 5, 7), 3) if "root" in text else ((2, 3, 4), 1)
    attempts = tried(CAME[text], sizes, root=root)
    attempts += tried(lambda x, r: x[r] * UNEVEN, (3,))
    assert sentence(text) not in relation(attempts, EXERCISE)


def mixed(n):
    """A tuple of a matrix, a list of numbers and a dictionary on each rank."""
    return [(drawn(3, 4) + r, [1.5, 2.5], {"loss": 3.0 + r}) for r in range(n)]


def test_a_relation_is_found_inside_of_lists_and_dictionaries():
    def scaled(x, r):
        matrix, pair, words = x[r]
        return matrix, [2 * each for each in pair], {"loss": 2 * words["loss"]}

    attempts = tried(scaled, right=mixed)
    assert relation(attempts, EXERCISE) == (
        sentence("is twice what was expected") + " Only its first item, [0], is right."
    )


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (lambda r, n: r == 0, "It is wrong on rank 0 only."),
        (lambda r, n: r == n - 1, "It is wrong on the last rank only."),
        (lambda r, n: r == n - 2, "It is wrong on the root only."),
        (lambda r, n: r > 0, "It is right on rank 0 only."),
        (lambda r, n: r < n - 1, "It is right on the last rank only."),
        (lambda r, n: r != n - 2, "It is right on the root only."),
    ],
)
def test_the_ranks_are_told_if_they_are_the_same_in_every_call(where, told):
    wrong = lambda x, r: x[r] * UNEVEN if where(r, len(x)) else x[r]
    assert relation(tried(wrong, (3,), root=1), EXERCISE) == told
    everywhere = tried(wrong, (3,)) + tried(lambda x, r: x[r] * drawn(3, 4), (2,))
    assert told not in relation(everywhere, EXERCISE)


def test_two_items_may_be_wrong_in_two_ways():
    pairs = lambda n: [(drawn(3, 3), drawn(4) + r) for r in range(n)]
    attempts = tried(lambda x, r: (x[r][0].T, x[r][1] * 2), right=pairs)
    assert relation(attempts, EXERCISE) == (
        "Wherever [0] is wrong, what came there is the transpose of what was expected. "
        "Wherever [1] is wrong, what came there is twice what was expected."
    )


def test_the_item_is_told_that_alone_is_wrong():
    attempts = tried(lambda x, r: (*x[r][:2], {"loss": r}), right=mixed)
    said = relation(attempts, EXERCISE)
    assert (
        said == sentence("is too small") + " Only [2]['loss'] of the outcome is wrong."
    )


def test_right_in_the_first_step_only():
    steps = lambda n: [[drawn(2, 2), drawn(2, 3), drawn(2, 4)] for _ in range(n)]
    late = lambda x, r: [x[r][0], *(1.7 * step for step in x[r][1:])]
    assert relation(tried(late, right=steps), EXERCISE).endswith(
        "Only its first item, [0], is right."
    )


def test_an_argument_that_is_changed_is_told():
    attempts = tried(CAME["is zero"])
    for attempt in attempts:
        attempt.args = [(x + 1, y) for x, y in attempt.case.inputs]
    exercise = EXERCISE.but(requirements=[untouched()])
    said = relation(attempts, exercise)
    assert (
        said == sentence("is zero") + " An argument that should stay is changed, too."
    )
    assert relation(attempts, EXERCISE) == sentence("is zero")


def test_ranks_are_those_of_the_variation():
    """Roles are mirrored: rank 0 plays the last part, and is the one that is wrong."""
    attempts = tried(lambda x, r: x[r] * (1 + (r == len(x) - 1)))
    for attempt in attempts:
        attempt.case.players = [*range(attempt.case.n)][::-1]
    said = relation(attempts, EXERCISE)
    assert (
        said == sentence("is twice what was expected") + " It is wrong on rank 0 only."
    )


def test_one_number_that_is_twice_another_says_nothing():
    one = lambda n: [3.0]
    assert relation(tried(lambda x, r: 6.0, (1,), one), EXERCISE) == ""
    assert relation(tried(lambda x, r: 6.0, (1, 1), one), EXERCISE) == sentence(
        "is twice what was expected"
    )


def test_the_outcome_may_be_off_by_a_number_that_the_cases_name():
    """Or by its root; and not if that number is the same in all of them."""
    attempts = tried(lambda x, r: x[r] * (len(x) + 5) ** -0.5)
    for attempt in attempts:
        attempt.case.facts |= {"a": 9.0, "b": attempt.case.n + 5}
    told = sentence("is 1/sqrt(b) times what was expected")
    assert relation(attempts, EXERCISE).startswith(f"{told} Hint: ")
    assert relation(attempts[:1], EXERCISE) == ""


STRANGE = [object(), np.ones(3), torch.ones(3, 4, dtype=torch.complex64)]
STRANGE += [torch.ones(3, 4, device="meta"), torch.ones(3, 4).to_sparse()]


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
def test_strange_outcomes_are_related_to_nothing(value):
    attempts = tried(lambda x, r: value)
    assert relation(attempts, EXERCISE) == ""
    assert usual_mistake(EXERCISE, attempts, attempts)[:2] == ("wrong", WRONG)


FORM = {None: "None", "copies": "text", 10**400: "a number", True: "True or False"}
FORM |= {(1,): "a list or tuple"}


@pytest.mark.parametrize("value", FORM)
def test_an_outcome_of_another_form_is_told(value):
    wanted = f"The outcome is {FORM[value]}, where a tensor is expected."
    assert relation(tried(lambda x, r: value), EXERCISE) == wanted
    mixed = lambda x, r: value if len(x) < 4 else -x[r]
    assert relation(tried(mixed), EXERCISE) == ""


def test_another_number_of_items_is_told_if_it_is_always_the_same():
    pairs = lambda n: [(r, "a") for r in range(n)]
    told = "The outcome has 3 items, where 2 are expected."
    assert relation(tried(lambda x, r: (*x[r], 0), right=pairs), EXERCISE) == told
    assert relation(tried(lambda x, r: [*x], (3, 4), right=pairs), EXERCISE) == ""


def test_digits_of_integers_too_large_for_a_float_are_told():
    large = lambda n: [2**60 + r for r in range(n)]
    attempts = tried(lambda x, r: x[r] + 1, right=large)
    attempts = [a for a in attempts if not same(a.came, a.case.expected)]
    told = relation(attempts, EXERCISE)
    assert told == sentence("is right in its first digits only")


def test_a_dtype_among_the_arguments_is_no_tensor():
    attempts = tried(CAME["is twice what was expected"])
    for attempt in attempts:
        attempt.case.inputs = [(torch.float32, *given) for given in attempt.case.inputs]
    assert relation(attempts, EXERCISE) == sentence("is twice what was expected")


def test_a_number_is_not_nearly_infinite():
    masked = lambda n: [torch.tensor([2.0, 3.0, -torch.inf]).double() for _ in range(n)]
    unmasked = tried(lambda x, r: x[r].clamp(min=-9), right=masked)
    assert relation(unmasked, EXERCISE) == sentence("is too large")
    doubled = tried(lambda x, r: x[r] * 2, right=masked)
    assert relation(doubled, EXERCISE) == sentence("is twice what was expected")


def test_a_relation_is_the_sentence_of_a_mistake_without_a_name():
    attempts = tried(CAME["is twice what was expected"])
    mistake = usual_mistake(EXERCISE, attempts, attempts)
    assert mistake[:2] == ("wrong", sentence("is twice what was expected"))
    attempts[0].error = ValueError("no outcome")
    assert usual_mistake(EXERCISE, attempts, attempts[1:] + attempts[:1])[1] == WRONG


def test_an_error_of_a_relation_is_raised_in_tests_only(monkeypatch):
    def broken(attempts, exercise):
        raise ZeroDivisionError

    monkeypatch.setattr(hints, "relation", broken)
    attempts = tried(CAME["is zero"])
    with pytest.raises(ZeroDivisionError):
        usual_mistake(EXERCISE, attempts, attempts)
    monkeypatch.setattr(signs, "STRICT", False)
    assert usual_mistake(EXERCISE, attempts, attempts)[:2] == ("wrong", WRONG)


def test_what_an_answer_raises_is_told_with_its_line_and_none_of_ours():
    two = Case("two", [(), ()], [0, 0])
    for line, told in (("a.py:3    x[7]", " in a.py:3    x[7]"), ("judging.py:9", "")):
        error = SimpleNamespace(rank=1, line=line)
        attempt = SimpleNamespace(cause=KeyError(7), error=error, case=two)
        text = hints._raises(None, [attempt], [attempt])
        assert text == f"Rank 1 raises KeyError{told}: 7"


def test_equal_numbers_of_another_kind_differ():
    one = torch.ones(2)
    assert _equal((torch.float32, one), (torch.float32, one), 0.0)
    for other in (torch.int64, bool, None):
        assert not _equal((torch.float32, one), (other, one), 0.0)
        assert _equal((other, one), (..., one), 0.0)
