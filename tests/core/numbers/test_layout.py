"""Every number of a tensor has exactly one place, and exponents are known before the block that needs them."""

import numpy as np
import pytest

from paceline.core.numbers.layout import (
    BLOCKS,
    DTYPES,
    EXPONENTS,
    LAYOUT,
    PLACE,
    SUM,
    find_place,
    lay_out,
    sendable,
)


@pytest.mark.parametrize("numbers", [1, 7, 157, 158, 2048, 20_000, 300_001, 3_000_000])
@pytest.mark.parametrize("workers", [1, 2, 8, 64])
@pytest.mark.parametrize("elements", [96, 352, 2048])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_places(numbers: int, workers: int, elements: int, dtype: str) -> None:
    if numbers / elements > 10_000:
        pytest.skip("many chunks, nothing new")
    layout = np.zeros(1, dtype=LAYOUT).view(np.recarray)[0]
    place = np.zeros(1, dtype=PLACE).view(np.recarray)[0]
    lay_out(layout, numbers, DTYPES[dtype], SUM, elements, workers)
    seen = 0
    sections: list[int] = []
    for local in range(layout.chunks):
        find_place(layout, local, place)
        assert 0 < place.count <= elements
        if place.kind == EXPONENTS:
            sections.append(int(place.first))
            assert local < sendable(layout, max(0, place.first - 1))
            continue
        assert place.first == seen
        seen += int(place.numbers)
        if layout.mode == BLOCKS:
            section = int(place.first // elements // layout.section_chunks)
            assert section in sections
            assert sendable(layout, section) <= local < sendable(layout, section + 1)
    assert seen == numbers
    assert sections == list(range(layout.sections))
