"""Names that others give, of jobs, servers, layers: they end up in terminals, logs, labels and pages."""


def shown(text: str) -> str:
    """The same, with a question mark for every character that cannot be shown, or is not Unicode."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def unicode_text(text: str) -> str:
    """The same, with a question mark for what is not Unicode: a lone half of a pair, a byte of another encoding."""
    return text.encode(errors="replace").decode()
