"""Nodes on one Linux machine: network namespaces, joined by links with a rate.

A namespace is a network of its own, with its own interfaces and addresses.  Here each
node is one, and so is the switch between them:

    node 0                   switch                  node 1
    eth0 10.77.0.1 --- port0 bridge port1 --- eth0 10.77.0.2

`tc tbf`, the kernel's token bucket, limits what leaves through every eth0 and port, so
each direction of each link has the rate.  Inside a node ranks talk over its loopback
interface, which has no limit.

The namespaces have no names, only descriptors that this process and its ranks hold.
When the last of these processes has ended, however it ended, the kernel removes them.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import threading
from typing import NamedTuple

from ..sim.cluster import Cluster
from ..sim.hardware import bits_per_second

NETWORK = 0x40000000  # CLONE_NEWNET
MOST = 4
# Payload of a full Ethernet frame: 1,500 bytes less 52 of IP and TCP with time stamps,
# of 1,514 that `tbf` counts.
PAYLOAD = 1448 / 1514
# Bytes that may pass at once.  The kernel hands on packets of up to 64 KB, which `tbf`
# would cut to pieces if they were larger than that.
BURST = 80_000
_here = None  # the Nodes in which runs of this process take place


class NodesUnavailable(RuntimeError):
    """This machine lets this process make no network namespaces; the text says why."""


class Node(NamedTuple):
    """Where a rank is: the number of its node, its address, and that of the store."""

    number: int
    per_node: int
    address: str
    store: str


class Nodes:
    """Nodes that exist, the links between them, and how to change these links."""

    def __init__(self, n, ranks_per_node, rate):
        self.n, self.per_node, self.rate = n, ranks_per_node, _bits(rate)
        self.hub, self.spaces = None, []

    @property
    def world_size(self):
        """Return the number of ranks on all nodes together."""
        return self.n * self.per_node

    def make(self):
        """Make the namespaces and the links; NodesUnavailable where that is refused."""
        if missing := [name for name in ("ip", "tc") if not shutil.which(name)]:
            raise NodesUnavailable(f"{CANNOT} There is no command {missing[0]!r}.")
        self.hub = _new_space()
        up = ["ip link set lo up", "ip link add hub type bridge", "ip link set hub up"]
        _commands(self.hub, up)
        hub = f"/proc/{os.getpid()}/fd/{self.hub}"
        for i in range(self.n):
            self.spaces.append(_new_space())
            pair = f"ip link add eth0 type veth peer name port{i} netns {hub}"
            mine = f"ip addr add {self.address(i)}/24 dev eth0"
            made = ["ip link set lo up", pair, mine, "ip link set eth0 up"]
            _commands(self.spaces[i], made)
            joined = [f"ip link set port{i} master hub", f"ip link set port{i} up"]
            _commands(self.hub, joined)
            self.set_rate(i, self.rate)

    def address(self, i):
        """Return the address of node i."""
        return f"10.77.0.{i + 1}"

    def set_rate(self, i, rate):
        """Give both directions of a node's link this rate, also during a run."""
        self._check(i)
        bits = _bits(rate)
        burst = max(BURST, round(bits / 8 / 1000))  # what leaves in a millisecond
        limit = f"rate {round(bits)}bit burst {burst} limit 16mb"
        how = "qdisc replace dev {} root handle 1: tbf " + limit
        _commands(self.spaces[i], ["tc " + how.format("eth0")])
        _commands(self.hub, ["tc " + how.format(f"port{i}")])

    def unplug(self, i):
        """Take a node's link down: what is sent there gets lost, and nobody is told."""
        self._check(i)
        _commands(self.hub, [f"ip link set port{i} down"])

    def plug(self, i):
        """Take a node's link up again."""
        self._check(i)
        _commands(self.hub, [f"ip link set port{i} up"])

    def _check(self, i):
        if not (isinstance(i, int) and 0 <= i < self.n):
            raise ValueError(f"There are the nodes 0 to {self.n - 1}, not {i!r}.")

    def node(self, rank):
        """Return the Node of a rank."""
        number = rank // self.per_node
        return Node(number, self.per_node, self.address(number), self.address(0))

    def inside(self, i, function):
        """Return `function()`, called by a thread in node i."""
        return _inside(self.spaces[i], function)

    def close(self):
        """Let the namespaces go; they end with the last rank that is inside."""
        for fd in [*self.spaces, self.hub]:
            if fd is not None:
                os.close(fd)
        self.hub, self.spaces = None, []

    def __repr__(self):
        each = f"{self.per_node} rank{'s' if self.per_node > 1 else ''} each"
        return f"{self.n} nodes with {each}, {self.rate / 1e9:g} Gbit/s between them"


@contextlib.contextmanager
def nodes(n, ranks_per_node, rate):
    """Place the ranks of runs on Gloo on n nodes, for as long as the context lasts.

    n                 2 to 4 nodes; ranks 0 to ranks_per_node - 1 are on the first
    rate              bits per second of each link, such as 1e9 or "1Gb"

    Yields the `Nodes`.  Inside, `d2lpar.run(..., backend="gloo")` starts exactly
    n * ranks_per_node ranks.  Needs Linux, root, and the commands `ip` and `tc`; raises
    NodesUnavailable elsewhere.  Nothing of it outlives the processes that use it.
    """
    global _here
    _check(n, ranks_per_node)
    if _here is not None:
        raise RuntimeError(f"There are nodes already: {_here}. End this context first.")
    made = Nodes(n, ranks_per_node, rate)
    try:
        made.make()
        _here = made
        yield made
    finally:
        _here = None
        made.close()


def _bits(rate):
    """Return bits per second of "1Gb", or of a number of them."""
    number = isinstance(rate, int | float) and not isinstance(rate, bool)
    return float(rate) if number and rate > 0 else bits_per_second(rate)


def _check(n, ranks_per_node):
    if not (isinstance(n, int) and 2 <= n <= MOST):
        raise ValueError(f"There can be 2 to {MOST} nodes, not {n!r}.")
    if not (isinstance(ranks_per_node, int) and ranks_per_node >= 1):
        text = "ranks_per_node must be a whole number of at least 1"
        raise ValueError(f"{text}, not {ranks_per_node!r}.")


def current(world_size):
    """Return the Nodes of this moment, or None; they must fit the number of ranks."""
    if _here is not None and world_size != _here.world_size:
        raise ValueError(
            f"These are {_here}, so a run here has {_here.world_size} ranks, "
            f"not {world_size}."
        )
    return _here


def cluster(here, latency=20e-6, rate=2e9, network_latency=60e-6):
    """Return a Cluster with the same links, for the simulator.

    `latency` and `rate` are those inside a node; `network_latency` is what a message
    between nodes takes besides its bytes, of which frames leave PAYLOAD.
    """
    return Cluster(
        name=repr(here),
        n=here.world_size,
        latency=latency,
        rate=rate,
        per_node=here.per_node,
        network_latency=network_latency,
        network_rate=here.rate / 8 * PAYLOAD,
    )


CANNOT = "This process may not make network namespaces, which needs Linux and root."


def _new_space():
    """Return a descriptor of a new network namespace."""

    def make():
        _system("unshare", NETWORK)
        path = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def enter(fd):
    """Move this thread, and those it will start, into a namespace; close `fd`."""
    _system("setns", fd, NETWORK)
    os.close(fd)


def _inside(fd, function):
    """Return `function()`, called by a thread in this namespace."""

    def there():
        _system("setns", fd, NETWORK)
        return function()

    return _in_thread(there)


def _system(name, *arguments):
    """Call this function of the C library; NodesUnavailable says why it failed."""
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is None:
        raise NodesUnavailable(f"{CANNOT} This system has no {name!r}.")
    if call(*arguments):
        reason = os.strerror(ctypes.get_errno())
        raise NodesUnavailable(f"{CANNOT} The kernel says: {reason}.")


def _in_thread(function):
    """Return `function()` of a thread that ends, with what it changed of itself."""
    result, error = [], []

    def work():
        try:
            result.append(function())
        except BaseException as raised:
            error.append(raised)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if error:
        raise error[0]
    return result[0]


def _commands(fd, lines):
    """Execute commands in this namespace; NodesUnavailable with what one said."""

    def execute():
        for line in lines:
            done = subprocess.run(line.split(), capture_output=True, text=True)
            if done.returncode:
                said = " ".join(done.stderr.split())
                raise NodesUnavailable(f"{CANNOT} `{line}` says: {said}")

    _inside(fd, execute)
