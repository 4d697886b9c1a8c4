"""Files of a posterior, changed as another program would change them."""

import h5py
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.inference.netcdf import LABEL, seal


def edit(file, change):
    """Change a file as another program would, and give it the right checksum again."""
    with h5py.File(file, "a") as opened:
        change(opened)
    data = file.read_bytes()
    assert LABEL not in data
    file.write_bytes(data + seal(data))


def refused(file, problem, message, **options):
    with pytest.raises(cb.StoreError, match=message) as caught:
        cb.open_datatree(file, problem, **options)
    assert str(file) in str(caught.value)
