"""How pictures look: colours, hatching, and figures that describe themselves.

Importing this module does not import matplotlib.
"""

import functools
import io
import sys

from .events import CODES, PASSES

# Okabe-Ito colours, some of them lighter or darker: lightness, hatching and letters
# tell them apart in grey.
FACES = {
    "compute": "#0072B2",
    "forward": "#9AD4F7",
    "backward": "#E69F00",
    "weight gradient": "#F0E442",
    "blocked": "#FFFFFF",
    "transferring": "#C4C4C4",
    "waiting": "#FFFFFF",
    "sending": "#CC79A7",
    "receiving": "#F0D4E3",
    "AG": "#9ADBC7",
    "RS": "#009E73",
    "AR": "#00563F",
    "collective": "#009E73",
}
EDGES = {"blocked": "#999999", "waiting": "#999999", "receiving": "#CC79A7"}
HATCHES = {"blocked": "////", "waiting": "\\\\\\\\", "collective": "...."}
HATCHES |= {"weight gradient": ".."}
WORDS = {"waiting": "in a call, wire unseen"} | {
    name: f"{name} ({letter})" for letter, name in PASSES.items()
}
WORDS |= {code: f"{code} {name}" for name, code in CODES.items()}
BESIDE = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0}
BESIDE |= {"frameon": False}  # of a legend
TILES = "#E69F00", "#56B4E9", "#009E73", "#F0E442"  # of devices A to D
INK = dict.fromkeys(("compute", "RS", "AR", "collective"), "white")


def _small_png(figure):
    """The picture with at most 256 colours: a third of the bytes."""
    from PIL import Image, PngImagePlugin

    whole, small = io.BytesIO(), io.BytesIO()
    figure.savefig(whole, format="png")
    about = PngImagePlugin.PngInfo()
    about.add_itxt("Description", figure.alt)
    few = Image.open(whole).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(small, "png", pnginfo=about, optimize=True)
    return small.getvalue()


def _outrank_pyplot(kind):
    """A notebook shows our PNG also after pyplot has set its own for all figures."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        formatter = shell.display_formatter.formatters["image/png"]
        formatter.for_type(kind, _small_png)


@functools.cache
def picture_class():
    """A Figure that shows itself in a notebook, with its description."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        alt = ""

        def __repr__(self):
            return f"<Picture: {self.alt}>"

        def _repr_mimebundle_(self, include=None, exclude=None):
            _outrank_pyplot(type(self))
            data = {"text/plain": repr(self), "image/png": _small_png(self)}
            return data, {"image/png": {"alt": self.alt}}

    return Picture


def canvas(width, height, right, top, left=0.0, bottom=0.0):
    """Return axes without lines on a figure of `width` x `height` inches."""
    import matplotlib.pyplot as plt

    ax = plt.figure(figsize=(width, height)).add_axes((0, 0, 1, 1))
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.axis("off")
    return ax


def tile(ax, x, y, width, height, device, text=None, size=9):
    """Draw a box in the colour of a device, 0 for A to 3 for D."""
    box = ax.bar(x, height, width, y, align="edge", color=TILES[device], ec="black")
    box[0].set_linewidth(0.6)
    at = {"ha": "center", "va": "center", "size": size}
    ax.text(x + width / 2, y + height / 2, text or "ABCD"[device], **at)


def block(ax, x, y, value, width=1.0):
    """Draw piece j of rank r, given as (j + 1) * 10**r, or hatched a sum over ranks.

    30 is rank 1's piece 2 and reads `B2`; 33 is its sum with rank 0's and reads `AB2`.
    """
    who = [r for r, digit in enumerate(f"{value:04d}"[::-1]) if digit != "0"]
    names = "+" if len(who) == 4 else "".join("ABCD"[r] for r in who)
    text = f"{names}{int(max(str(value))) - 1}" if who else " "
    tile(ax, x, y, width, 1, who[0] if who else 0, text)
    if len(who) != 1:
        hatch = "////" if who else None
        ax.patches[-1].set(fc="white", ec="#BBBBBB", hatch=hatch)
        ax.texts[-1].set_bbox(
            {"fc": "white", "ec": "none", "pad": 0.5, "alpha": bool(who)}
        )


def halved(ax, x, middle, size, along, sums):
    """Draw a matrix of `size` (height, width) that ranks A and B have halves of.

    It is cut along dimension 0 or 1, or grey for -1, where both have all of it.  If
    `sums`, they are two hatched sheets instead, which are to be added.
    """
    for r in (1, 0) if sums or along >= 0 else (0,):
        height, width = (s / (1 + (along == k)) for k, s in enumerate(size))
        low = middle - size[0] / 2 + (height * (along == 0 and not r) + sums * r)
        left = x + r * (width * (along == 1) + sums)
        text = None if along >= 0 and not sums else " "
        tile(ax, left, low, width, height, r, text)
        ax.patches[-1].set_hatch("//" * sums)
        if along < 0 and not sums:
            ax.patches[-1].set_facecolor("#DDDDDD")
