"""Every number of a tensor has exactly one place, and exponents are known before the block that needs them."""

import numpy as np
import pytest

from paceline.core.numbers.layout import (
    BLOCKS,
    DTYPES,
    EXPONENTS,
    HALVES,
    LAYOUT,
    PEAKS,
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
    lay_out(layout, numbers, DTYPES[dtype], SUM, elements, workers, 32)
    seen = 0
    sections: list[int] = []
    for local in range(layout.chunks):
        find_place(layout, local, place)
        assert 0 < place.count <= elements
        if place.kind == EXPONENTS:
            sections.append(int(place.first))
            assert local < sendable(layout, max(0, place.first - 1), 0)
            continue
        assert place.first == seen
        seen += int(place.numbers)
        if layout.mode == BLOCKS:
            section = int(place.first // elements // layout.section_chunks)
            assert section in sections
            assert sendable(layout, section, 0) <= local < sendable(layout, section + 1, 0)
    assert seen == numbers
    assert sections == list(range(layout.sections))


@pytest.mark.parametrize("numbers", [16_385, 20_000, 300_001, 1_000_000])
@pytest.mark.parametrize("workers", [1, 8, 64])
@pytest.mark.parametrize("elements", [96, 352, 2048])
def test_places_of_the_16_bit_form(numbers: int, workers: int, elements: int) -> None:
    layout = np.zeros(1, dtype=LAYOUT).view(np.recarray)[0]
    place = np.zeros(1, dtype=PLACE).view(np.recarray)[0]
    lay_out(layout, numbers, DTYPES["bfloat16"], SUM, elements, workers, 16)
    assert layout.mode == HALVES
    everything = int(layout.sections)
    in_section = int(layout.section_chunks * layout.chunk_patches)
    seen, patches = 0, 0
    sections: list[int] = []
    for local in range(layout.chunks):
        find_place(layout, local, place)
        assert 0 < place.count <= elements
        if place.kind == EXPONENTS:
            sections.append(int(place.first))
        elif place.kind == PEAKS:
            assert place.first == patches
            section = patches // in_section
            patches += int(place.numbers)
            assert section in sections
            assert sendable(layout, section, everything) <= local < sendable(layout, section + 1, everything)
        else:
            assert place.first == seen
            section = seen // (2 * elements) // int(layout.section_chunks)
            seen += int(place.numbers)
            assert patches >= min((section + 1) * in_section, int(layout.patches))
            assert sendable(layout, everything, section) <= local < sendable(layout, everything, section + 1)
    assert (seen, patches) == (numbers, layout.patches)
    assert sections == list(range(everything))
    # What is known only of the section before lets nothing of this one go.
    assert sendable(layout, 0, 0) == min(2, everything)
