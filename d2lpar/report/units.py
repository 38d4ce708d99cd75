"""Seconds, bytes and counts as texts."""


def counted(number, noun):
    """`1 rank`, `1,024 ranks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_seconds(seconds):
    """`220 us`, `1.5 ms`, `2 s`: four digits at most."""
    for unit, scale in (("ns", 1e9), ("us", 1e6), ("ms", 1e3)):
        if 0 < float(f"{seconds * scale:.4g}") < 1000:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds:.4g} s" if seconds < 1e4 else f"{seconds:,.0f} s"


def show_bytes(count):
    """`1,536 B`: exact below a million, then `24.58 MB` in powers of a thousand."""
    if count < 1e6:
        return f"{count:,} B"
    for unit in ("MB", "GB", "TB", "PB"):
        count /= 1e3 if unit != "MB" else 1e6
        if float(f"{count:.4g}") < 1000:
            break
    return f"{count:.4g} {unit}"


def short_bytes(count):
    """`750 kB`: three digits, for the inside of pictures."""
    scales = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    fits = (unit for unit, b in scales.items() if float(f"{count / b:.3g}") < 1000)
    unit = next(fits, "GB")
    return f"{count / scales[unit]:.3g} {unit}"


def ns(seconds):
    """Whole nanoseconds, so that neighbours never overlap."""
    return round(seconds * 1e9)
