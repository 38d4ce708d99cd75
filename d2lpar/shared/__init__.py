"""What several chapters and rooms use: data, models, notebooks as files, copies.

Imports nothing else of this package.
"""
