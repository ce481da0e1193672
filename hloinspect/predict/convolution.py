"""FLOPs of convolutions.

XLA:TPU writes every matrix product as a convolution, with padded windows that mostly miss their input.
"""

from __future__ import annotations

import re
from math import gcd, prod

from hloinspect.hlo.model import Instruction
from hloinspect.hlo.shape import Shape

_FIELD = re.compile(r"(size|stride|pad|lhs_dilate|rhs_dilate)=([\dx_\-]+)")
_MAX_WINDOW = 1 << 20


def _window(text: str, spatial: int) -> dict[str, list[int]]:
    """Return the fields of a window, with one number for each spatial dimension (``pad``: its low end)."""
    fields = {"size": [1] * spatial, "stride": [1] * spatial, "pad": [0] * spatial}
    fields |= {"lhs_dilate": [1] * spatial, "rhs_dilate": [1] * spatial}
    for name, value in _FIELD.findall(text):
        numbers = [part.partition("_")[0] for part in value.split("x")]
        if len(numbers) == spatial and all(re.fullmatch(r"-?\d{1,9}", number) for number in numbers):
            fields[name] = [int(number) for number in numbers]
    return fields


def valid_products(  # noqa: PLR0913  (the numbers of one dimension of a window, under XLA's names)
    inputs: int, outputs: int, size: int, stride: int, pad: int, lhs_dilate: int, rhs_dilate: int
) -> int:
    """Count the pairs of an output position and a window position that meet an element of the input in one dimension.

    The count is XLA's (hlo_cost_analysis.cc, HandleConvolution): padding and the holes of a dilated input cost nothing.
    """
    if size > _MAX_WINDOW or stride < 1 or lhs_dilate < 1:
        return min(inputs, size) * outputs
    last = (inputs - 1) * lhs_dilate
    common = gcd(stride, lhs_dilate)
    period = lhs_dilate // common  # in a dilated input every period-th output, or none, falls on an element
    total = 0
    for position in range(size):
        offset = position * rhs_dilate - pad  # input place of output o: o * stride + offset
        low = max(0, -(offset // stride)) if offset < 0 else 0
        high = min(outputs - 1, (last - offset) // stride)
        if high < low:
            continue
        if offset % common:
            continue
        first = -(offset // common) * pow(stride // common, -1, period) % period
        total += (high - first) // period - (low - 1 - first) // period
    return total


def convolution_flops(instruction: Instruction, lhs: Shape, kernel: Shape) -> float:
    """Return the FLOPs of a convolution, or 0 if its labels cannot be read.

    They are 2 x valid products x batch of a group x input features of a group x output features (hlo_cost_analysis.cc,
    HandleConvolution). The result's batch is that of one group.
    """
    lhs_labels, _, rest = instruction.dim_labels.partition("_")
    kernel_labels, _, result_labels = rest.partition("->")
    shapes = ((lhs_labels, lhs), (kernel_labels, kernel), (result_labels, instruction.shape))
    if any(len(labels) != len(shape.dims) for labels, shape in shapes) or "o" not in kernel_labels:
        return 0.0
    spatial = sorted(label for label in lhs_labels if label.isdecimal())
    window = _window(instruction.window_text, len(spatial))
    products = prod(
        valid_products(
            lhs.dims[lhs_labels.index(label)],
            instruction.shape.dims[result_labels.index(label)],
            kernel.dims[kernel_labels.index(label)],
            window["stride"][axis],
            window["pad"][axis],
            window["lhs_dilate"][axis],
            window["rhs_dilate"][axis],
        )
        for axis, label in enumerate(spatial)
        if label in kernel_labels and label in result_labels
    )
    batch = instruction.shape.dims[result_labels.index("b")] if "b" in result_labels else 1
    features = kernel.dims[kernel_labels.index("i")] if "i" in kernel_labels else 1
    return 2.0 * products * batch * features * kernel.dims[kernel_labels.index("o")]
