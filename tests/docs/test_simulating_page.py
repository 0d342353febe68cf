"""The page about scenarios lists every key there is, with the unit and the default it really has."""

from typing import get_type_hints

import pytest
from pydantic import BaseModel

from paceline.generated import field_texts, rewritten
from paceline.sim import describe
from paceline.sim.scenario import PolicySettings, Scenario
from tests.docs.pages import ROOT


def test_page_is_as_generated() -> None:
    page = (ROOT / "docs/simulating.md").read_text(encoding="utf-8")
    assert rewritten(page, describe.sections()) == page, "run `make docs`"


def test_page_shows_every_part() -> None:
    page = (ROOT / "docs/simulating.md").read_text(encoding="utf-8")
    for name in describe.sections():
        assert f"<!-- generated: {name} -->" in page


def _models(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for hint in get_type_hints(model).values():
        for part in (hint, *getattr(hint, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found |= _models(part)
    return found


def test_every_table_of_a_scenario_is_described() -> None:
    described = {*describe.TABLES.values(), *describe.fault_models().values()}
    assert _models(Scenario) - {PolicySettings} == described


def test_a_key_without_a_meaning_is_told() -> None:
    class Section(Scenario):
        novelty: int = 0

    with pytest.raises(LookupError, match=r"Section\.novelty has no meaning"):
        describe.meaning_of(Section, "novelty")


def test_no_meaning_is_left_over() -> None:
    models = [*describe.TABLES.values(), *describe.fault_models().values()]
    known = {f"{model.__name__}.{key}" for model in models for key in model.model_fields}
    known |= {f"*.{key}" for model in models for key in model.model_fields}
    assert set(describe.MEANINGS) <= known
    for model in models:
        for key in field_texts(model):
            assert f"{model.__name__}.{key}" not in describe.MEANINGS, "the text in the source counts"


@pytest.mark.parametrize(
    ("part", "row"),
    [
        ("network keys", "| `delay` | time | `1 us` | Of each link, one way. |"),
        ("job keys", "| `hosts` | list of whole number | - |"),
        ("fault keys", "| `loss` | number >= 0, < 1 | `0` |"),
        ("fault tables", "| `job` | text | required |"),
        ("network keys", "| `topology` | `star`, `leaf-spine` | `star` |"),
    ],
)
def test_rows_read_as_a_user_writes(part: str, row: str) -> None:
    assert row in describe.sections()[part]
