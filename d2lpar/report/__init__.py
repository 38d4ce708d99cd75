"""What a run leaves behind: its record, its errors, and pictures of both.

A rank sees one form of every operation (`calls`) and keeps one record (`engine`); the
`ledger` adds up the records of all ranks, and `runs` has the result.  `timeline` shows
itself as text (`twin`), picture (`plots`), page (`player`) and trace; `errors` and
`explain` say what went wrong.  Imports from `shared` only.
"""
