"""Rows as a pandas DataFrame, for whoever has pandas; nothing else here needs it."""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.errors import UserError


def dataframe(rows: Iterable[Mapping[str, Any]]) -> Any:
    """The rows as a `pandas.DataFrame`; a `UserError` that names the package where it is missing."""
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        raise UserError("to_dataframe needs pandas: pip install pandas") from None
    return pandas.DataFrame(list(rows))
