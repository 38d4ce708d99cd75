"""15.2 The forgotten reduction: forgotten(config, sizes, N, T, counted)."""

from d2lpar.mesh import Mesh
from d2lpar.mesh.costs import bytes_per_step, numbers, tensors
from zoo import right, wrong

AXES = "data", "pipeline", "tensor"


def missing(config, sizes, N, T, counted):
    expected = bytes_per_step(config, Mesh(*sizes), N, T)
    return [expected[axis] - counted[axis] for axis in AXES]


def named(config, sizes, N, T, counted, copies=True, ways=2, flags=True, parts=True):
    d, p, t = sizes
    data, pipeline, tensor = missing(config, sizes, N, T, counted)
    one = 2 * (t - 1) * N * T * config.D * 4
    table = ways * (d if copies else 1) * config.vocabulary * config.D * 4
    if tensor:
        return {one: "tables", one * config.depth: "blocks"}.get(tensor, "nothing")
    if pipeline:
        return "tied" if pipeline == table else "nothing"
    for stage in range(p if data else 0):
        mesh = Mesh(*sizes)
        count = numbers(config, mesh, stage)
        count += tensors(config, mesh, stage) if flags else 0
        if data == 2 * (d - 1) * (t if parts else 1) * count * 4:
            return f"stage {stage}"
    return "nothing"


@right
def axis_by_axis(config, sizes, N, T, counted):
    return named(config, sizes, N, T, counted)


@right
def by_the_ratio(config, sizes, N, T, counted):
    """No closed form for the sums: their bytes are compared with each other."""
    data, pipeline, tensor = missing(config, sizes, N, T, counted)
    if tensor:
        per_block = bytes_per_step(config._replace(depth=config.depth + sizes[1]),
                                   Mesh(*sizes), N, T)["tensor"]  # fmt: skip
        four = per_block - bytes_per_step(config, Mesh(*sizes), N, T)["tensor"]
        one = four // sizes[1] // 4
        return "tables" if tensor == one else "blocks"
    if pipeline:
        return "tied"
    return named(config, sizes, N, T, counted) if data else "nothing"


@wrong("one copy")
def forgets_the_data_ranks(*given):
    return named(*given, copies=False)


@wrong("one way")
def counts_one_direction(*given):
    return named(*given, ways=1)


@wrong("no flags")
def counts_parameters_only(*given):
    return named(*given, flags=False)


@wrong("one part")
def counts_one_tensor_rank(*given):
    return named(*given, parts=False)


@wrong("last stage")
def names_the_last_that_fits(config, sizes, N, T, counted):
    name = named(config, sizes, N, T, counted)
    held = [numbers(config, Mesh(*sizes), stage) for stage in range(sizes[1])]
    if not name.startswith("stage"):
        return name
    equal = [s for s, mine in enumerate(held) if mine == held[int(name.split()[1])]]
    return f"stage {equal[-1]}"


@wrong("largest axis")
def names_the_axis(config, sizes, N, T, counted):
    less = missing(config, sizes, N, T, counted)
    names = "stage 0", "tied", "blocks"
    return names[less.index(max(less))] if max(less) else "nothing"


@wrong("no name")
def returns_the_bytes(*given):
    return missing(*given)


@wrong("no name")
def without_the_space(*given):
    return named(*given).replace(" ", "")


def each_axis_alone(config, sizes, N, T, counted, data_first=False):
    """A right formula for each name, but none asks whether anything is missing."""
    d, p, t = sizes
    mesh = Mesh(*sizes)
    data, pipeline, tensor = missing(config, sizes, N, T, counted)
    one = 2 * (t - 1) * N * T * config.D * 4
    found = []
    if p > 1 and pipeline == 2 * d * config.vocabulary * config.D * 4:
        found.append("tied")
    if tensor in (one, one * config.depth):
        found.append("tables" if tensor == one else "blocks")
    counts = [numbers(config, mesh, k) + tensors(config, mesh, k) for k in range(p)]
    fit = [k for k in range(p) if data == 8 * (d - 1) * t * counts[k]]
    stages = [f"stage {fit[0]}"] if fit else []
    return [*(stages + found if data_first else found + stages), "nothing"][0]


@wrong("zero bytes")
def never_asks_whether_bytes_are_missing(*given):
    return each_axis_alone(*given)


@wrong("zero bytes")
def the_same_with_the_stages_first(*given):
    return each_axis_alone(*given, data_first=True)


@wrong("blocks for tables")
def turns_the_two_round(*given):
    name = named(*given)
    return {"tables": "blocks", "blocks": "tables"}.get(name, name)


@wrong("from one")
def counts_stages_from_1(*given):
    name = named(*given)
    return f"stage {int(name[6:]) + 1}" if name.startswith("stage") else name


@wrong("wrong")
def takes_the_rows_of_one_data_rank(config, sizes, N, T, counted):
    """Right unless the table is forgotten on a mesh with several data ranks."""
    tensor = missing(config, sizes, N, T, counted)[2]
    one = 2 * (sizes[2] - 1) * (N // sizes[0]) * T * config.D * 4
    if tensor:
        return "tables" if tensor == one else "blocks"
    return named(config, sizes, N, T, counted)


@wrong("wrong")
def always_nothing(*given):
    return "nothing"
