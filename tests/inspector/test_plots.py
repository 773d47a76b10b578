"""Places and sizes in plots."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from langgraph_pgstate.inspector.drawing import HEIGHT, WIDTH, columns, line, nice


@pytest.mark.parametrize(("value", "top"), [(0, 0), (-1, 0), (1, 1), (1.1, 2), (30, 40), (43, 50), (0.007, 0.01)])
def test_the_upper_line_is_a_round_number(value: float, top: float) -> None:
    assert nice(value) == pytest.approx(top)


def test_columns_stand_on_the_ground_and_fill_the_width() -> None:
    days = [(date(2026, 3, 1) + timedelta(days=number), float(number)) for number in range(30)]
    plot = columns(days)
    assert all(one.y + one.height == pytest.approx(HEIGHT, abs=0.2) for one in plot.columns)
    assert plot.columns[0].height == 0
    assert plot.columns[29].height == pytest.approx(29 / 40 * HEIGHT, abs=0.1)
    assert plot.columns[-1].x + plot.columns[-1].width <= WIDTH
    assert sum(one.is_labelled for one in plot.columns) <= 8
    assert plot.columns[-1].is_labelled
    assert plot.lines == ((HEIGHT * 0.75, 10), (HEIGHT * 0.5, 20), (HEIGHT * 0.25, 30), (0, 40))


def test_a_plot_of_nothing_has_no_lines() -> None:
    assert columns([]).lines == columns([(date(2026, 3, 1), 0.0)]).lines == ()


def test_a_line_goes_through_all_values() -> None:
    assert line([1.0]) == ""
    assert line([0, 5, 10], 100, 24) == "0.0,22.0 50.0,12.0 100.0,2.0"
    assert line([3, 3], 10, 10) == "0.0,8.0 10.0,8.0"
