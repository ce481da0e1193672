"""Amounts as text, and the first of a list with how many there are besides."""

from __future__ import annotations

import pytest

from hloinspect.units import bytes_text, bytes_texts, listed, time_text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        *((14_830.0, "14.83 s"), (9_999.0, "9999 ms"), (75.3, "75.3 ms"), (2.4, "2.4 ms")),
        *((0.0014, "1.4 us"), (3e-6, "3 ns"), (0.0, "0 ms")),
    ],
)
def test_a_time_has_three_digits_and_the_unit_that_fits(milliseconds: float, text: str) -> None:
    assert time_text(milliseconds) == text


def test_a_size_has_three_digits_and_a_binary_unit() -> None:
    assert [bytes_text(size) for size in (0, 1023, 1024, 512 << 20, 3 << 40)] == [
        *("0 B", "1023 B", "1 KiB", "512 MiB", "3 TiB")
    ]


def test_two_sizes_that_would_read_alike_get_more_digits() -> None:
    used, limit = bytes_texts((80 << 30) + (1 << 20), 80 << 30)
    assert used != limit


def test_a_sentence_names_the_first_and_counts_the_rest() -> None:
    assert listed([], 2) == ""
    assert listed(["a", "b"], 2) == "a, b"
    assert listed((1, 2, 3, 4, 5), 2) == "1, 2 and 3 more"
