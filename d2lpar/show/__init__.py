"""What was recorded, as data, text, pictures and players.

`timeline` is the record; `twin` shows it in characters, `plots` as a picture, `player`
as a page that plays it, `trace` for Perfetto; `gantt` draws schedules. Imports nothing
else of this package, so that everything may show itself.
"""
