"""What a rank says, cut to a length that a reader and a notebook can bear."""

HEAD, TAIL = 1000, 500  # characters that stay of a longer text


def short(text):
    """Return the text, or its head and tail with how much lies between them."""
    left_out = len(text) - HEAD - TAIL
    if left_out <= HEAD:
        return text
    return f"{text[:HEAD]} ... ({left_out:,} characters left out) ... {text[-TAIL:]}"


def shorten(error):
    """Cut the long texts of an exception and of those that it comes from."""
    for each in chain(error):
        texts = [isinstance(arg, str) and len(arg) > 2 * HEAD for arg in each.args]
        if any(texts):
            pairs = zip(each.args, texts, strict=True)
            each.args = tuple(short(arg) if long else arg for arg, long in pairs)


def chain(error):
    """The error and those that led to it, which may go round in a circle."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
