import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/scheduling.md"


def test_the_python_example_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    names: dict[str, object] = {}
    exec(code.replace('by_name("bco-plus")', 'by_name("bco-plus", budget_s=0.1)'), names)
    schedule = names["schedule"]
    assert schedule.makespan_s >= schedule.lower_bound_s > 0  # type: ignore[attr-defined]
