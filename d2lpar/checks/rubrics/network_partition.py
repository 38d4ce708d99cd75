"""What the exercises of chapter 11 ask for, each in a module of its own."""

from .learning import learn
from .placing import place
from .timing import timing

EXERCISES = [place, learn, timing]
