"""The devices that the checks of chapter 03 play: tensors that know where they are."""

import copy
import pickle

import pytest
import torch

from d2lpar.checks.solutions.ex_03_3 import simulated
from d2lpar.shared.played import Device, Wire, places, put

MEETINGS = [
    lambda a, b: a + b,
    lambda a, b: a @ b.T,
    lambda a, b: torch.cat([a, b]),
    lambda a, b: a.add_(b),
    lambda a, b: a.copy_(b),
    lambda a, b: a.__setitem__(slice(None), b),
    lambda a, b: torch.stack((a, b)),
    lambda a, b: torch.add(a, other=b),
]


@pytest.fixture
def two():
    return put(torch.ones(2, 2), 0), put(torch.full((2, 2), 5.0), 1)


@pytest.mark.parametrize("meet", MEETINGS)
def test_tensors_of_two_devices_do_not_meet(two, meet):
    with pytest.raises(RuntimeError, match="device 0 and device 1"):
        meet(*two)
    assert two[0].tolist() == [[1, 1], [1, 1]]


def test_what_comes_of_an_operation_stays_on_its_device(two):
    _, x = two
    made = [x + 1, 2 * x, x.T, x[0], x.view(-1), torch.zeros_like(x), x.clone()]
    made += [*x.tensor_split(2), torch.cat([x, x]), x @ torch.ones(2, 2), sum([x, x])]
    assert {tensor.place for tensor in made} == {1}
    assert places({"a": [x], "b": (made, None, 3)}) == {1}


def test_a_message_is_a_copy_and_is_counted(two):
    wire = Wire()
    came = wire.send(two[0][0], 0, 1)
    two[0].zero_()
    assert came.tolist() == [1, 1]
    assert (came + two[1][0]).place == 1
    assert wire.moved == [(0, 1, 2)]
    assert wire.elements(3) == [2, 0, 0]
    assert wire.elements(3, end=1) == [0, 2, 0]


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (lambda a: (a, 1, 0), RuntimeError, "on device 0, not on device 1"),
        (lambda a: (a, 0, 0), ValueError, "no message to itself"),
        (lambda a: (3.0, 0, 1), TypeError, "not float"),
    ],
)
def test_a_message_that_cannot_be_is_refused(two, message, error, text):
    wire = Wire()
    with pytest.raises(error, match=text):
        wire.send(*message(two[0]))
    assert wire.moved == []


def test_gradients_stay_on_their_device(two):
    x = two[1].clone().requires_grad_()
    (grad,) = torch.autograd.grad((x * x).sum(), x)
    assert grad.place == 1
    assert grad.tolist() == (2 * two[1]).tolist()


@pytest.mark.parametrize(
    ("times", "links", "m", "pipelined", "expected"),
    [
        ((1, 1, 1), (0, 0), 3, True, 5),  # the source's five slots
        ((1, 1, 1), (0, 0), 3, False, 9),  # and nine
        ((2, 1), (5,), 3, True, 18),  # the table of exercise 03.3
        ((2, 1), (5,), 3, False, 24),
        ((4,), (), 2, True, 8),
    ],
)
def test_the_truth_of_exercise_03_3(times, links, m, pipelined, expected):
    assert simulated(times, links, m, pipelined) == expected


def test_a_device_tells_what_it_was_asked_and_not_what_it_plays():
    gpu = Device(ask=1.0, job=4.0, busy=10.0, factors=[2.0, 1.0])
    for _ in range(2):
        gpu.clock()
        gpu.launch("job")
    gpu.synchronize()
    assert gpu.clock() == 22.0  # 10 of older work, then 8 and 4
    assert gpu.record() == (2, [(0, 0.0), (1, 1.0), (2, 22.0)])
    with pytest.raises(TypeError):
        vars(gpu)
    with pytest.raises(ValueError, match="one job"):
        gpu.launch("mine")
    for again in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="do not copy it"):
            again(gpu)
