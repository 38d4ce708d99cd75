"""The code that a chapter shows is the library's, and each function stands once."""

import ast
from collections import Counter

import pytest

from authoring import inline_code
from conftest import CHAPTERS, FURTHER, ROOT
from d2lpar.cli import console
from d2lpar.shared import notebooks

SHOWING = CHAPTERS + FURTHER + sorted(ROOT.glob("solutions/*.ipynb"))
# Modules of which chapters show every public function.
CONCEPTS = """
messages scatter data_parallel overlap parameter_server shared/model_zoo
shared/footprint allreduce/algorithms allreduce/costs allreduce/shared_memory
allreduce/half sharding/zero sharding/checkpoint network_partition/part
network_partition/layers network_partition/balance tensor_parallel/products
tensor_parallel/trips pipeline/execution pipeline/delayed
hybrid/weird_trick hybrid/domain hybrid/split_choice mesh/grid
mesh/gpt_parts mesh/costs planning/search planning/memory
sequence/ulysses experts/layer experts/nodes failures/reliability failures/saving
""".split()

LIBRARY = '''\
"""A module."""

import math

LIMIT = 3
STEPS = (1, 2)

# The table of moves:
#   0 -> 1


# directly above
@property
def first(x):
    """One."""
    return x  # [N, D]


def second(x):
    return first(x)


class Third:
    """Three."""

    def __init__(self):
        self.x = 0

    def add(self):
        """Sum."""

        return self.x  # [N]

    # the last
    @property
    def last(self):
        return 3


AFTER = Third()
'''


@pytest.fixture
def package(tmp_path):
    (tmp_path / "moves.py").write_text(LIBRARY)
    return tmp_path


def cell(body):
    source = "# in d2lpar/moves.py\n" + body
    return {"cell_type": "code", "source": source}


# What no chapter prints: plumbing, of which the chapter that uses it says what it does.
UNSHOWN = {
    # 02: nets for images are counted there, and only a GPT is taken apart
    "shared/model_zoo": "alexnet vgg16 Bottleneck resnet50",
    # 06: memory of the operating system, variants, and costs with formulas in the text
    "allreduce/shared_memory": "Board board_of",
    "allreduce/algorithms": "direct_allreduce segmented_ring_allreduce flat_view "
    "split_into_nodes node_groups check_tensor",
    "allreduce/costs": "tree_cost direct_cost segmented_ring_cost lower_bound "
    "recursive_doubling_cost halving_doubling_cost hierarchical_cost",
    # 07: batch norm with its backward pass by hand, and a loss scale
    "data_parallel": "SyncBatchNorm convert_batch_norms",
    "allreduce/half": "LossScale unscale",
    # 08: it shows the hook and the inside of a bucket, prints plans, and has a table of
    # what the four modules send
    "overlap": "plan_buckets broadcast_state Replica NaiveDDP FlatDDP BucketedDDP "
    "OverlappedDDP check_first",
    # 09: it shows what a server does and its rules, and says what a worker sends
    "parameter_server": "Flat gradient_of work Server serve role",
    # 10: it shows the stages, a flat and the hooks, and says what is counted
    "sharding/zero": "Sharded split_parameters step_shards",
    "shared/footprint": "Memory memory traffic held",
    # 11: it prints what a U-Net's layers take, and what `sizes` returns, says what the
    # seconds of a part are, shows its two passes, and names what they call
    "network_partition/layers": "Conv side_by_side unet",
    "network_partition/balance": "Size sizes layer_seconds part_seconds",
    "network_partition/part": "home_of like_value send_value returns receive_value "
    "send_back open_receives gradients_back Part",
    # 12: it shows three moves, says what the fourth does, and how a part is cut
    "tensor_parallel/products": "Part parts_of own_part product_of add_bias "
    "own_parameter",
    # 13: it shows the executor's F, and the lines of its mail
    "pipeline/execution": "Mail Pipeline form_changed form_of note_of receiver "
    "stages_by_number",
    "pipeline/delayed": "convolution delay_weights",
    # 14: it shows the walk of a step and the costs of a split, and prints the passes
    "tensor_parallel/trips": "gather_number post wait",
    "hybrid/weird_trick": "WeirdTrick Meeting passes Columns split_dense "
    "without_empty all_rows check_dense check_scheme",
    "hybrid/domain": "Halo Window DomainLayer DomainConv2d DomainPool2d heights_of "
    "depths check_heights check_picture split_rows own_rows window_of beside "
    "first_rows last_rows rows cat",
    "hybrid/split_choice": "Shape shapes plan_seconds to_loss",
    # 15: it shows the methods that carry the ideas of the mesh, and names what counts
    "mesh/grid": "Mesh bytes_per_axis",
    "mesh/gpt_parts": "Config recipe blocks_of one_device Moment Stage make_stage "
    "row_losses split_dimensions by_kind own_piece whole_of names_and_shapes shapes_of",
    "mesh/costs": "numbers tensors",
    # 16: it says what `Held` has and how a price follows from hours
    "planning/memory": "Held",
    "planning/search": "cost",
    # 17: it shows `to_heads`, draws the exchange in a table, and says what is refused
    "sequence/ulysses": "to_sequence ulysses_attention shares_of_heads",
    # 18: it shows the layer on ranks and names the one-device layer, refusals and trips
    "experts/layer": "MoE count_tokens check_sizes check_logits check_tokens",
    "experts/nodes": "Flight depart",
    # 19: it shows how a checkpoint is written and read, says what a piece has and
    # names the helpers; Young's interval is a formula in the text
    "failures/saving": "Piece put_text settle come_first digest complete "
    "Saving rank_and_size meet agree damage part_of join split_off assemble",
    "failures/reliability": "Goodput goodput interval",
}


def shown_in(path):
    """Names of (module, definition) that the marked cells of a notebook show."""
    for shown in filter(inline_code.is_marked, notebooks.read(path)["cells"]):
        module = inline_code.module_of(shown["source"])
        for definition in inline_code.definitions(shown["source"]):
            yield from ((module, name) for name in definition.names)


@pytest.mark.parametrize("path", SHOWING, ids=[p.stem for p in SHOWING])
def test_marked_cells_equal_the_library(path):
    differences = [
        console.difference(old, new, path.name)
        for old, new in inline_code.sync(notebooks.read(path))
    ]
    assert not differences, "run `make sync`\n" + "\n\n".join(differences)


@pytest.mark.parametrize("name", CONCEPTS)
def test_every_public_function_stands_in_exactly_one_chapter(name):
    module = f"{name}.py"
    times = Counter(
        shown
        for p in CHAPTERS + FURTHER
        for where, shown in shown_in(p)
        if where == module
    )
    tree = ast.parse((ROOT / "d2lpar" / module).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    public = [n.name for n in tree.body if isinstance(n, kinds) and n.name[0] != "_"]
    unshown = set(UNSHOWN.get(name, "").split())
    assert unshown < set(public)
    assert {each: times[each] for each in public} == {
        each: each not in unshown for each in public
    }


def test_definitions_have_the_comment_directly_above():
    found = {d.names: d.text for d in inline_code.definitions(LIBRARY)}
    assert found["first",].startswith("# directly above\n@property\ndef first")
    assert found["first",].endswith("return x  # [N, D]")
    assert found["LIMIT",] == "LIMIT = 3"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("LIMIT = 4\nSTEPS = ()", "LIMIT = 3\nSTEPS = (1, 2)"),
        ("def second(y):\n    return 0", "def second(x):\n    return first(x)"),
    ],
)
def test_sync_brings_the_librarys_text(package, body, expected):
    notebook = {"cells": [cell(body)]}
    changed = inline_code.sync(notebook, package)
    assert notebook["cells"][0]["source"] == "# in d2lpar/moves.py\n" + expected
    assert [old for old, _ in changed] == ["# in d2lpar/moves.py\n" + body]
    assert inline_code.sync(notebook, package) == []


# A class may span cells


THIRD = LIBRARY[LIBRARY.index("class Third") : LIBRARY.index("\n\n\nAFTER")]


def test_a_class_is_whole_where_no_other_cell_adds_to_it(package):
    notebook = {"cells": [cell("class Third: 0\nLIMIT = 0")]}
    inline_code.sync(notebook, package)
    source = notebook["cells"][0]["source"]
    assert source == f"# in d2lpar/moves.py\n{THIRD}\n\n\nLIMIT = 3"


def test_a_method_in_another_cell_is_left_out_of_its_class(package):
    add = "@add_to_class(Third)\ndef add(self, y): 0"
    last = "@add_to_class(Third)\n@property\ndef last(self): 0"
    cells = [cell("class Third: 0\nAFTER = 0"), cell(f"{add}\n{last}")]
    assert len(inline_code.sync({"cells": cells}, package)) == 2
    head, body = (c["source"].split("\n", 1)[1] for c in cells)
    first = THIRD[: THIRD.index("\n\n    def add")]
    assert head == f"{first}\n\n\nAFTER = Third()"
    assert body == (
        '@add_to_class(Third)\ndef add(self):\n    """Sum."""\n\n'
        "    return self.x  # [N]\n\n\n"
        "# the last\n@add_to_class(Third)\n@property\n"
        "def last(self):\n    return 3"
    )
    assert inline_code.sync({"cells": cells}, package) == []


def test_a_method_that_the_class_lacks_is_refused(package):
    body = "@add_to_class(Third)\ndef subtract(self): 0"
    with pytest.raises(inline_code.InlineCodeError, match="define Third.subtract"):
        inline_code.sync({"cells": [cell(body)]}, package)


def test_sync_keeps_the_blank_lines_between_neighbours(package):
    notebook = {"cells": [cell("def first(): 0\ndef second(): 0")]}
    inline_code.sync(notebook, package)
    source = notebook["cells"][0]["source"]
    assert source.split("\n", 1)[1] in LIBRARY


def test_sync_leaves_other_cells_alone(package):
    plain = {"cell_type": "code", "source": "def second(y):\n    return 0"}
    assert inline_code.sync({"cells": [dict(plain)]}, package) == []


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("def fourth(): 0", "moves.py does not define fourth"),
        ("LIMIT = 3\nprint(LIMIT)", "`print.LIMIT.` is not a definition"),
        ("# nothing", "holds no definition"),
    ],
)
def test_a_cell_without_a_counterpart_is_refused(package, body, complaint):
    with pytest.raises(inline_code.InlineCodeError, match=complaint):
        inline_code.sync({"cells": [cell(body)]}, package)


def test_a_module_that_is_not_there_is_named(package):
    wrong = {"cell_type": "code", "source": "# in d2lpar/other.py\ndef f(): 0"}
    with pytest.raises(inline_code.InlineCodeError, match="no d2lpar/other.py"):
        inline_code.sync({"cells": [wrong]}, package)


def test_the_difference_shows_both_texts():
    text = console.difference("a\nb", "a\nc", "04_messages.ipynb")
    assert "-b" in text.splitlines()
    assert "+c" in text.splitlines()
