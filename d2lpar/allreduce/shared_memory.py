"""All-reduce through memory that the ranks of one host share: no tensor is sent.

n ranks, r this rank.  A tensor is cut into n shards.  The board is a table in shared
memory.  Rank i writes row i, rank j adds column j, and all read the diagonal.

             shard 0    shard 1    shard 2
    rank 0   sum 0      0 -> 1     0 -> 2      1. write: my terms of the others' sums
    rank 1   1 -> 0     sum 1      1 -> 2         all ranks meet
    rank 2   2 -> 0     2 -> 1     sum 2       2. add: my column, and my own shard
                                                  all ranks meet
                                               3. read: the sums of the others

Steps 1 and 2 are a reduce-scatter, step 3 is an all-gather.  A tensor with more bytes
than a row goes through the board in pieces.  Nobody waits after step 3: what a fast
rank writes next is not on the diagonal, and it adds only when all have met again.
"""

import threading
import time
import weakref

import torch
import torch.distributed as dist

from ..launch.common_memory import common_memory
from ..scatter import members

BYTES = 1 << 26  # of a board; what no tensor needs takes no memory
LINE = 64  # bytes of a cache line: no two ranks write into the same one
STEPS, SIZE, CALL = range(3)  # what a rank writes into its line

boards = {}  # id of a process group: its Board


def shared_memory_allreduce(tensor, group=None):
    """`tensor` is the sum over the ranks of the group, the same bits on all.

    In place, any size and dtype, in the memory of one host.  Terms are added
    in the order of the ranks.  The first call of a group makes its board with
    two small collectives; later calls send nothing.  ValueError: not on the
    CPU, or sizes that differ.  RuntimeError: ranks without common memory.
    """
    if tensor.device.type != "cpu":
        raise ValueError(
            "shared_memory_allreduce adds in the memory of the host, not on "
            f"{tensor.device}: use ring_allreduce or dist.all_reduce."
        )
    if dist.get_world_size(group) == 1 or tensor.numel() == 0:
        return
    flat = tensor.detach().reshape(-1)  # [S], a copy where it must be one
    board = board_of(group)
    board.bring(flat.nbytes)
    cells = board.cells(flat.dtype)
    for piece in flat.split(board.n * len(cells[0])):
        add_piece(piece.tensor_split(board.n), cells, board)
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def add_piece(shards, cells, board):
    """The n shards are sums over the ranks; `cells`: the table, row by row."""
    n, r = board.n, board.r
    cell = lambda i, j: cells[n * i + j][: len(shards[j])]
    others = [j for j in range(n) if j != r]
    for j in others:
        cell(r, j).copy_(shards[j])
    board.meet()
    board.compare()
    mine, diagonal = shards[r], cell(r, r)
    terms = [mine if i == r else cell(i, r) for i in range(n)]
    total, copy = (mine, diagonal) if r < 2 else (diagonal, mine)
    torch.add(terms[0], terms[1], out=total)  # in place on ranks 0 and 1
    for term in terms[2:]:
        total += term
    copy.copy_(total)
    board.meet()
    for j in others:
        shards[j].copy_(cell(j, j))


def board_of(group):
    """The board of the group, made by the first call, gone with the group."""
    group = group or dist.group.WORLD
    if id(group) not in boards:
        boards[id(group)] = Board(group)
        weakref.finalize(group, boards.pop, id(group), None)
    return boards[id(group)]


class Board:
    """Memory that the ranks of one group share, and a way for them to meet."""

    def __init__(self, group):
        self.n, self.r = members(group)
        self.group, self.lock = weakref.ref(group), threading.Lock()
        self.steps, self.heard, self.views = 0, time.monotonic(), {}
        width = max(BYTES // self.n**2 // LINE, 1) * LINE  # bytes of a cell
        head = LINE * self.n
        memory, self.bell = common_memory(head + self.n**2 * width, group)
        self.table = torch.frombuffer(memory, dtype=torch.uint8)[head:]
        lines = [memoryview(memory)[i : i + LINE] for i in range(0, head, LINE)]
        self.lines = [line.cast("q") for line in lines]

    def cells(self, dtype):
        """The n x n cells of the table, row by row, as tensors of this dtype."""
        if dtype not in self.views:
            rows = self.table.view(dtype).view(self.n**2, -1)
            self.views[dtype] = rows.unbind()
        return self.views[dtype]

    def bring(self, size):
        """The others will see how many bytes this rank brings."""
        line = self.lines[self.r]
        line[SIZE], line[CALL] = size, time.monotonic() - self.heard > 1

    def compare(self):
        """All bring tensors of the same size; called when they have met."""
        sizes = [line[SIZE] for line in self.lines]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"The ranks bring {sizes} bytes, but a sum needs tensors of one size."
            )
        if self.lines[0][CALL] and self.bell:
            dist.barrier(self.group())  # a launcher sees calls only: we are alive
            self.heard, self.lines[self.r][CALL] = time.monotonic(), 0

    def meet(self):
        """All ranks have come here, and see what the others have written."""
        if self.bell is None:  # the simulator: another rank runs when this one calls
            return dist.barrier(self.group())
        self.steps += 1
        self._settle()
        self.lines[self.r][STEPS] = self.steps
        self.bell.ring()
        here = lambda: all(line[STEPS] >= self.steps for line in self.lines)
        self.bell.wait_until(here)
        self._settle()

    def _settle(self):
        for _ in range(2):  # ARM may swap reads and writes, but not across two locks
            with self.lock:
                pass
