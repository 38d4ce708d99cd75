"""Assignments: made from the solutions, varied by a seed, and public answers fail."""

import functools
import re
import sys

import pytest
import torch.distributed as dist
from typer.testing import CliRunner

from conftest import ROOT
from d2lpar import check
from d2lpar.checks import checker, judging, signs, solutions
from d2lpar.checks.solutions import ex_05_1, ex_08_3
from d2lpar.checks.varying import turned
from d2lpar.cli import instructing
from d2lpar.cli import main as cli
from d2lpar.cli.console import Refused
from d2lpar.grade import assign, exercises
from d2lpar.shared import notebooks

SOLUTIONS = ROOT / "solutions"
WORDS = assign.table(SOLUTIONS)
EXERCISES = {name: solutions.load(name) for name in solutions.known()}
VARIATIONS = {k: it for each in EXERCISES.values() for k, it in each.variations.items()}
DAY = "05.4b", "06.1b"  # whose ranks play other parts, so that figures are turned
NIGHT = {"marks": pytest.mark.night}
ONES = [pytest.param(it, **({} if it in DAY else NIGHT)) for it in VARIATIONS]
EACH = pytest.mark.parametrize("varied", ONES)
# what answers need of the cells above them
GIVEN = ("def sgd", "def leaving", "class Block")


def solution(name):
    """The instructor's notebook with this exercise."""
    return next(SOLUTIONS.glob(f"{name[:2]}_*.ipynb"))


def answer(cells, notebook):
    """The function that the notebook checks in these cells."""
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    space = {}
    exec(notebook["cells"][2]["source"], space)  # the imports
    for source in code:
        if "BEGIN SOLUTION" in source or source.startswith(GIVEN):
            exec(source, space)
    name = re.search(r'd2lpar.check\("\d\d.\d\w?", (\w+)\)', code[-1])[1]
    return space[name]


@pytest.fixture
def few(monkeypatch):
    """Checks look at the first cases only, in the simulator: this is about words."""
    find = checker.find

    def thin(exercise):
        def cases(rng):
            every = list(exercise.draw(rng))
            small = [case for case in every if case.n < 4]
            larger = [case for case in every if case.n == 4]
            return small[:: max(1, len(small) // 2)][:3] + larger[1:3]

        public = exercise.public and thin(exercise.public)
        return exercise.but(draw=cases, processes=(), public=public)

    monkeypatch.setattr(signs, "STRICT", True)
    monkeypatch.setattr(checker, "find", lambda name: thin(find(name)))
    monkeypatch.setattr(checker, "replaced", lambda: [])  # that is what we do here


def test_there_is_one_in_every_chapter_from_04_on():
    varied = {name[:-1] for name in VARIATIONS}
    assert {name[:2] for name in varied} == {f"{k:02}" for k in range(4, 21)}
    assert len(varied) >= 12
    assert set(WORDS) == set(VARIATIONS)


@EACH
def test_its_own_answer_passes_and_the_public_one_does_not(varied, few):
    public, mine = (notebooks.read(solution(varied)) for _ in "ab")
    cells = assign.cells_of(mine, varied[:-1])
    assign.rewrite(cells, varied, WORDS[varied])
    report = check(varied, answer(cells, mine), seed=5)
    assert report.passed, report
    report = check(varied, answer(assign.cells_of(public, varied[:-1]), public))
    assert report.mistake == "public answer" and report.score == 0
    assert VARIATIONS[varied].differs in str(report)


# Known answers, in other roles

BACK = {"07.1b": lambda n, model, pairs: (model, [_old(*pair) for pair in pairs])}
BACK["17.2b"] = lambda n, T, p, window, order: (T, p, window + 1, order)
BACK["16.2b"] = lambda n, *given: (*given[:-1], given[-1] * 7 // 8)
BACK["16.3b"] = lambda n, rows: ([(*r[:5], r[5] / r[3], r[6]) for r in rows],)
# where `back` is not its own reverse
FORTH = {"19.2b": VARIATIONS["19.2b"].roles.shows}
# known answers that can be put into other roles from outside
CHOSEN = {
    "04.1b": "no_mod",
    "04.3b": "right later_call swapped",
    "05.3b": "hangs",
    "05.4b": "empty_shard hangs",
    "06.1b": "too_few_chunks",
    "06.2c": "ties digits_3",
    "07.1b": "means_4",
    "08.1b": "right full_2 sum_2",
    "10.2b": "absent_2",
    "11.2b": "hangs",
    "13.1b": "over_the_budget as_1F1B",
    "16.1b": "right elsewhere upside_down",
    "16.2b": "right not_the_most",
    "16.3b": "right no_recomputation",
    "17.2b": "right length",
    "17.3b": "right counts",
    "19.1b": "right trusts_rank_0 always_one",
    "19.2b": "right cut stays last back wrong",
    "19.3b": "right no_checksum older",
}


def _old(x, y):
    return x, y.masked_fill(y == -1, -100)


def in_its_role(varied, function):
    """The known answer, as somebody would write it for the variation."""
    it = VARIATIONS[varied].roles
    given = BACK.get(varied, it.given)

    @functools.wraps(function)
    def answer(*arguments):
        n = dist.get_world_size()
        value = function(*given(n, *arguments)) if given else function(*arguments)
        forth = FORTH.get(varied, it.back)
        return turned(forth, value, n) if forth else value

    return answer


def rename(monkeypatch, part):
    """Messages go to and come from parts, not ranks."""
    size, real = dist.get_world_size, dist.get_rank

    def player(r):
        n = size()
        return next((k for k in range(n) if part(k, n) == r), r)

    def renamed(call):
        def message(tensor, *peer, **keywords):
            peer = [player(peer[0]), *peer[1:]] if peer else ()
            for key in {"src", "dst"} & {*keywords}:
                keywords[key] = player(keywords[key])
            came = call(tensor, *peer, **keywords)
            return part(came, size()) if isinstance(came, int) else came

        return message

    for name in ("send", "recv", "isend", "irecv"):
        monkeypatch.setattr(dist, name, renamed(getattr(dist, name)))
    monkeypatch.setattr(dist, "get_rank", lambda group=None: part(real(), size()))
    own = lambda inputs: inputs[real()]  # the check itself keeps to the ranks
    monkeypatch.setattr(judging, "_of_this_rank", own)


def chosen(varied):
    known = {f.__name__: (f, m) for f, m in EXERCISES[varied[:-1]].answers()}
    return [
        pytest.param(varied, *known[name], id=f"{varied}-{name}")
        for name in CHOSEN.get(varied, "").split()
    ]


@pytest.mark.night
@pytest.mark.parametrize("varied, function, mistake", sum(map(chosen, VARIATIONS), []))
def test_known_answers_are_judged_as_in_public(
    varied, function, mistake, few, monkeypatch
):
    if part := VARIATIONS[varied].roles.part:
        rename(monkeypatch, part)
    report = check(varied, in_its_role(varied, function), hint=True)
    assert report.passed == (mistake is None), report
    assert report.mistake == mistake, report


EDITED = [(ex_05_1, m) for m in ("root", "no batch", "rowless", "empty messages")]
EDITED += [(ex_08_3, mistake) for mistake in ("wrong", "returns None")]


@pytest.mark.night
@pytest.mark.parametrize(("module", "mistake"), EDITED)
def test_an_edit_of_the_varied_answer_is_told_as_in_public(module, mistake):
    name = module.ex.name
    cells = assign.cells_of(notebooks.read(solution(name)), name)
    assign.rewrite(cells, f"{name}b", WORDS[f"{name}b"])
    source = next(c["source"] for c in cells if "BEGIN SOLUTION" in c["source"])
    varied = solutions.of(name)._replace(source=source)
    edits = next(one.edits for one in module.ex.known if one.mistake == mistake)
    report = check(f"{name}b", varied.make(varied.edited(edits)))
    assert report.mistake == mistake, report


# The notebooks


def test_seed_0_is_public_to_the_byte(tmp_path):
    path = solution("05.1")
    summary = assign.assign(path, 0, tmp_path)
    public = ROOT / "exercises" / path.name
    assert (tmp_path / "release" / path.name).read_bytes() == public.read_bytes()
    assert (tmp_path / "solutions" / path.name).read_bytes() == path.read_bytes()
    assert {what for _, what in summary} == {"as in public"}


@pytest.mark.night
@pytest.mark.parametrize(
    "path", sorted(SOLUTIONS.glob("*.ipynb")), ids=lambda p: p.stem
)
def test_an_exercise_alone_has_all_that_it_needs(path, tmp_path):
    for name in assign.exercises_in(notebooks.read(path)):
        assign.assign(path, 0, tmp_path / name, [name])
        made = tmp_path / name / "solutions" / path.name
        assert assign.exercises_in(notebooks.read(made)) == [name]
        assert check(name, solutions.read(made)[name].make()).passed


def test_the_same_seed_makes_the_same_assignment(tmp_path):
    made = {}
    for where, seed in (("a", 7), ("b", 7), ("c", 8)):
        assign.assign(solution("05.1"), seed, tmp_path / where)
        files = sorted((tmp_path / where).rglob("*.ipynb"))
        made[where] = [path.read_bytes() for path in files]
    assert made["a"] == made["b"] != made["c"]
    public = notebooks.read(solution("05.1"))
    mine = notebooks.read(next((tmp_path / "a" / "solutions").glob("*")))
    seeds = [re.findall(r"seed=\d+", str(book)) for book in (public, mine)]
    assert len(seeds[0]) == len(seeds[1]) and not set(seeds[0]) & set(seeds[1])


@pytest.mark.parametrize(
    "path", sorted(SOLUTIONS.glob("*.ipynb"))[::4], ids=lambda p: p.stem
)
def test_the_release_says_nothing_of_answers_and_seeds(path, tmp_path):
    summary = assign.assign(path, 3, tmp_path)
    released = tmp_path / "release" / path.name
    text = released.read_text(encoding="utf-8")
    for word in (
        "BEGIN",
        "HIDDEN",
        "SOLUTION",
        "seed=",
        *(what for _, what in summary),
    ):
        assert word not in text or word == "as in public"
    asked = re.findall(r'd2lpar.check\(\\"(.*?)\\"', text)
    assert [name for name in asked if name != "..."] == [name for name, _ in summary]
    mine = notebooks.read(tmp_path / "solutions" / path.name)
    theirs = exercises.stub(mine)["cells"]
    assert notebooks.read(released)["cells"] == theirs


def test_words_that_are_not_there_get_a_sentence():
    cells = [{"source": "one two two"}]
    with pytest.raises(ValueError, match="05.1b: not in the exercise's cells: 'three'"):
        assign.rewrite(cells, "05.1b", [("three", "3")])
    with pytest.raises(ValueError, match="more than once"):
        assign.rewrite(cells, "05.1b", [("two", "2")])


def test_an_unknown_variation_gets_a_sentence():
    with pytest.raises(ValueError, match="no variation '05.1z' of 05.1: 05.1b"):
        checker.find("05.1z")
    with pytest.raises(ValueError, match="no variation '05.2b' of 05.2: none"):
        checker.find("05.2b")


def assigned(*words):
    return CliRunner().invoke(cli.app, ["assign", *map(str, words)])


def test_the_command_tells_the_instructor_what_is_varied(tmp_path):
    told = assigned("05", "05.1", "--seed", 7, "--to", tmp_path).output
    assert "05.3b" in told and "as in public" in told


def test_single_exercises_are_assigned(tmp_path):
    told = assigned("05.3", "05.1", "06.2", "--seed", 7, "--to", tmp_path).output
    assert re.findall(r"\d\d\.\d\w?", told) == ["05.1b", "05.3b", "06.2b"]
    released = notebooks.read(tmp_path / "release" / "05_scatter.ipynb")
    assert assign.exercises_in(released) == ["05.1", "05.3"]
    with pytest.raises(Refused, match="no exercise 05.9: there are 05.1, 05.2"):
        raise assigned("05.9", "--to", tmp_path).exception


def test_without_nbgrader_it_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    loaded = [name for name in sys.modules if name.startswith("nbgrader.")]
    for name in ["nbgrader", *loaded]:
        monkeypatch.setitem(sys.modules, name, None)
    for seed in (0, 1):
        with pytest.raises(Refused, match="nbgrader is not installed. Instr"):
            instructing.assign(["05"], tmp_path / "made", seed)
    assert not (tmp_path / "made").exists()
