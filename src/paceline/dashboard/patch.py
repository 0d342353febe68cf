"""JSON merge patches (RFC 7386): what must be merged into one document to get another."""

from typing import Any


def difference(before: Any, after: Any) -> Any:
    """The patch that makes `after` of `before`; both are dictionaries without None. Lists are replaced whole."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := difference(old, value):
                patch[key] = inner
        elif key not in before or old != value:
            patch[key] = value
    return patch


def merged(document: Any, patch: Any) -> Any:
    """The document with the patch applied, as the page does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
