"""Names that others give, of jobs, servers, layers: they end up in terminals, logs, labels and pages."""


def shown(text: str) -> str:
    """The same, with a question mark for every character that cannot be shown, or is not Unicode."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
