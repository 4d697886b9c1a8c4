"""Files of a posterior, changed as another program would change them.

Internals: a changed file needs a checksum that is right.
"""

import h5py
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.inference.datatree import checksum_line


def edit(file, change):
    """Change a file as another program would, and write a matching checksum."""
    with h5py.File(file, "a") as opened:
        change(opened)
    data = file.read_bytes()
    file.write_bytes(data + checksum_line(data))


def refused(source, problem, message, **options):
    """Check that a file or a tree is refused with a message that names it."""
    with pytest.raises(cb.errors.StoreError, match=message) as caught:
        cb.Posterior.load(source, problem, **options)
    named = "the tree" if hasattr(source, "children") else str(source)
    assert named in str(caught.value)
