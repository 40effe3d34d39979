"""Checkpoints of Flax as dicts of arrays: read, written, compared bit for bit."""

import numpy as np


def read(path, prefix=""):
    with np.load(path, allow_pickle=False) as file:
        return {name.removeprefix(prefix): values for name, values in file.items()}


def save(path, arrays, prefix="", **beside):
    np.savez(path, **{f"{prefix}{name}": values for name, values in arrays.items()}, **beside)
    return path


def assert_same_bits(got, wanted):
    assert list(got) == sorted(wanted)
    for name, values in wanted.items():
        assert got[name].dtype == np.float32 and got[name].shape == values.shape, name
        # As integers: -0.0 is not 0.0.
        np.testing.assert_array_equal(got[name].view(np.uint32), values.view(np.uint32), err_msg=name)


def as_bfloat16(values):
    """As bfloat16 arrives, two bytes without a type, and as float32: it is the upper half of one."""
    halves = (values.view(np.uint32) >> 16).astype(np.uint16).view("V2")
    return halves, (halves.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
