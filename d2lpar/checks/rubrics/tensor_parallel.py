"""What the exercises of chapter 12 ask for."""

from . import gated, grid, likely, masks

EXERCISES = [grid.exercise, gated.exercise, likely.exercise, masks.exercise]
