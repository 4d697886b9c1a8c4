"""What a file holds is looked at before it is loaded; each file here has the right checksum."""

import h5py
import numpy as np
import pytest
from stored_cases import edit, refused

import causal_bo_ppl as cb

pytestmark = pytest.mark.heavy
KINDS = ["external link", "soft link", "virtual", "external data", "compound", "group"]
LONG = ["x" * 10_000] * 200


@pytest.fixture(scope="module")
def tree(chain):
    post = cb.fit(chain.problem, chain.observe(8, 0), prior=cb.FixedPrior())
    return post.to_datatree(draws=16, rows=True)


@pytest.fixture
def file(tree, tmp_path):
    return cb.write_datatree(tree, tmp_path / "post.nc")


@pytest.mark.parametrize("kind", KINDS)
def test_what_points_elsewhere_or_is_strange_is_refused(file, chain, tmp_path, kind):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as other:
        other["x"] = np.arange(3.0)

    def change(opened):
        if kind == "external link":
            opened["posterior/leak"] = h5py.ExternalLink(str(secret), "/x")
        elif kind == "soft link":
            opened["posterior/leak"] = h5py.SoftLink("/posterior/theta")
        elif kind == "virtual":
            layout = h5py.VirtualLayout(shape=(3,), dtype=float)
            layout[:] = h5py.VirtualSource(str(secret), "x", shape=(3,))
            opened.create_virtual_dataset("posterior/leak", layout)
        elif kind == "external data":
            outside = [(str(tmp_path / "raw"), 0, 24)]
            opened.create_dataset("posterior/leak", (3,), float, external=outside)
        elif kind == "compound":
            opened["posterior/leak"] = np.zeros(2, dtype=[("a", float), ("b", int)])
        else:
            opened.create_group("strange")

    edit(file, change)
    messages = {
        "external link": "holds a link",
        "soft link": "holds a link",
        "virtual": "in another file",
        "external data": "in another file",
        "compound": "which no posterior has",
        "group": "has the group .strange",
    }
    refused(file, chain.problem, messages[kind])


def test_damage_inside_is_a_store_error(file, chain):
    def spoil(opened, kind):
        theta = opened["posterior/theta"]
        if kind == "scaled":
            theta.attrs["scale_factor"] = 2.0
        elif kind == "nested":
            opened["posterior"].create_group("more")
        elif kind == "twice":
            opened["prior/again"] = opened["posterior"]
        elif kind == "empty":
            opened["posterior/none"] = h5py.Empty("f")
        elif kind == "no scale":
            del opened["posterior/coordinate"]
        else:
            opened.attrs["problem"] = np.arange(3)

    whole = file.read_bytes()
    for kind in ("scaled", "nested", "twice", "empty", "no scale", "attribute"):
        file.write_bytes(whole)
        edit(file, lambda opened, kind=kind: spoil(opened, kind))
        refused(file, chain.problem, r"post.nc' (has|holds|cannot be read|is of)(?! no checksum)")


def test_many_long_texts_count(file, chain):
    def change(opened):
        opened["posterior"].create_dataset("long", data=LONG, dtype=h5py.string_dtype())

    edit(file, change)
    refused(file, chain.problem, "declares .* bytes, more than 1,000,000", largest=1_000_000)


def test_a_small_file_that_declares_much_is_refused(file, chain):
    def change(opened):
        opened["posterior"].create_dataset("huge", (10**9,), float, chunks=(10**6,))

    edit(file, change)
    assert file.stat().st_size < 10**6
    refused(file, chain.problem, "declares 8,0.* bytes, more than")


def test_a_file_without_theta_is_refused(file, chain):
    edit(file, lambda opened: opened.__delitem__("posterior"))
    refused(file, chain.problem, "holds no posterior")
