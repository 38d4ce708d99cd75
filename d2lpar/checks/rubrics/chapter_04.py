"""What exercises of chapter 04 share."""

from .. import requirements as rows

WAITED = rows.all_waited()
