"""The legend of a grid of panels is not cut off."""

from __future__ import annotations

import numpy as np
import pytest

from fedsolve.studies.pictures import Line, Panel, panels


@pytest.mark.gate("4")
@pytest.mark.parametrize("length", [4, 14, 24])
def test_the_legend_fits_the_figure(length):
    lines = [Line(f"{i} {'method ' * length}"[:length], np.arange(3), np.zeros((2, 3))) for i in range(9)]
    figure = panels([[Panel("a", lines, "y", "x", ylog=False)] * 3], "title", 3.3, 2.6)
    figure.canvas.draw()
    legend, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert legend.x0 >= whole.x0
    assert legend.x1 <= whole.x1
