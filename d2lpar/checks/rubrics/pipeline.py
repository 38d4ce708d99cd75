"""What the exercises of chapter 13 ask for: each has a module of its own."""

from .budgets import budget
from .forecasts import predicted
from .send_orders import order
from .tied_weights import tied

EXERCISES = [budget, order, tied, predicted]
