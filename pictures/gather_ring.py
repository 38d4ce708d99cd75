"""Draws gather against ring anew: `python pictures/gather_ring.py` from the clone.

Four ranks average one megabyte each, in two ways.  Both runs are simulated, so their
events are the same on every machine.  `gather_ring.png` shows all of them, with what
the ranks wait for; `gather_ring.gif` plays the messages alone, and stops after three
rounds.
"""

from functools import cached_property
from pathlib import Path

import matplotlib
import numpy as np
import PIL
import torch
import torch.distributed as dist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image, ImageDraw, ImageFont

import d2lpar
from d2lpar.allreduce import naive_allreduce, ring_allreduce
from d2lpar.report.plots import compare_timelines
from d2lpar.report.timeline import Timeline

PICTURE = Path(__file__).with_suffix(".png")
MOVING = PICTURE.with_suffix(".gif")
WAYS = {
    "Gather, by way of rank 0": naive_allreduce,
    "Ring, a quarter at a time": ring_allreduce,
}
WIDTH, DPI = 5.0, 120  # inches, pixels to an inch: on a phone a letter has 10 pixels
STEP = 10e-6  # seconds of the simulated clock from frame to frame
SHOWN, LAST = 80, 2500  # milliseconds that a frame stands, and the complete one
ROUNDS = 3
COLOURS = 48
PALE = 0.2  # how much of its colour has what is still to come
VERSIONS = f"matplotlib {matplotlib.__version__}, Pillow {PIL.__version__}"


def average(allreduce):
    """The mean over ranks of one megabyte on each."""
    x = torch.full((250_000,), float(dist.get_rank()))
    allreduce(x)
    return x / dist.get_world_size()


def runs():
    """Name to run of both ways."""
    return {
        name: d2lpar.run(average, allreduce, world_size=4, backend="sim")
        for name, allreduce in WAYS.items()
    }


def draw(path=PICTURE):
    """The picture of new runs is at `path`, with its description inside."""
    figure = compare_timelines({name: run.timeline for name, run in runs().items()})
    figure.savefig(path, dpi=120, metadata={"Description": figure.alt})


class Messages(Timeline):
    """A timeline without what ranks do while their messages travel."""

    @cached_property
    def events(self):
        """What lasts on the rows of messages."""
        return [each for each in super().events if each.stream in ("send", "recv")]

    @cached_property
    def rows(self):
        """{rank: {stream: events}}, with no row for what a rank computes."""
        rows = super().rows
        return {rank: {s: rows[rank][s] for s in ("send", "recv")} for rank in rows}


def frames():
    """The clock sweeps over the two timelines: one picture for each `STEP` of it."""
    lines = {name: Messages(run.timeline, 4) for name, run in runs().items()}
    figure = compare_timelines(lines, width=WIDTH)
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    whole = np.asarray(canvas.buffer_rgba())[..., :3]
    pale = np.rint(255 - PALE * (255.0 - whole)).astype(np.uint8)
    boxes = [axes.get_window_extent() for axes in figure.axes]
    elapsed = max(line.elapsed for line in lines.values())
    count = round(elapsed / STEP)
    for frame in range(1, count):
        yield _at(frame / count, f"{frame * STEP * 1e6:.0f} us", whole, pale, boxes)
    yield Image.fromarray(whole)


def _at(share, clock, whole, pale, boxes):
    """The picture at a time: what is to come is pale, and a line shows the clock."""
    pixels, height = whole.copy(), len(whole)
    x = round(boxes[0].x0 + share * boxes[0].width)
    for box in boxes:
        rows = slice(round(height - box.y1), round(height - box.y0))
        pixels[rows, x : round(box.x1) + 8] = pale[rows, x : round(box.x1) + 8]
        pixels[rows, x - 1 : x + 2] = 0
    image = Image.fromarray(pixels)
    font = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf")
    right, low = boxes[0].x1, height - boxes[-1].y0 - 12
    text = ImageDraw.Draw(image)
    text.font = ImageFont.truetype(font, 20)
    text.text((right, low), clock, "black", anchor="rs")
    return image


def animate(path=MOVING):
    """The moving picture of new runs is at `path`, as a GIF of few colours."""
    images = list(frames())
    both = np.hstack([images[len(images) // 4], images[-1]])
    palette = Image.fromarray(both).quantize(COLOURS, dither=Image.Dither.NONE)
    near = [255 if level > 248 else level for level in palette.getpalette()]
    palette.putpalette(near)  # paper is white
    small = [image.quantize(palette=palette, dither=0) for image in images]
    small[0].save(
        path,
        save_all=True,
        append_images=small[1:],
        duration=[SHOWN] * (len(small) - 1) + [LAST],
        loop=ROUNDS - 1,  # how often it begins again
        optimize=False,
        comment=VERSIONS,
    )


if __name__ == "__main__":
    draw()
    animate()
