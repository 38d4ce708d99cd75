"""What exercises of chapter 04 share."""

from .. import requirements as rows

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
WAITED = rows.all_waited()
