"""is_finite agrees with numpy for every 16-bit float and for the extreme values of float32 and float64."""

from __future__ import annotations

import numpy as np
import pytest

from omni_proto.tensors.schema import dtype_info
from omni_proto.tensors.values import is_finite


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_every_sixteen_bit_number(name: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32) if name == "bfloat16" else bits.view(np.float16)
    dtype = dtype_info(name)
    assert [is_finite(bits[n : n + 1].tobytes(), dtype) for n in range(len(bits))] == np.isfinite(values).tolist()


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("neighbour", [1.0, -1.0])
def test_edges_among_finite_neighbours(name: str, neighbour: float) -> None:
    limits = np.finfo(name)
    for value in (0.0, -0.0, limits.max, limits.min, limits.smallest_subnormal, np.inf, -np.inf, np.nan, -np.nan):
        array = np.array([neighbour, value, neighbour], dtype=name)
        assert is_finite(array.tobytes(), dtype_info(name)) == bool(np.isfinite(array).all())
