"""Whatever is passed to the public API, only errors of the package come out.

Run by `make slow`, about a minute.
"""

import contextlib
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from helpers.runs import optimize
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import causal_bo_ppl as cb

pytestmark = pytest.mark.slow
fuzz = settings(
    max_examples=1_000,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # a failure is shown as it was found
    suppress_health_check=list(HealthCheck),
)
few = settings(fuzz, max_examples=250)

numbers = st.one_of(
    st.floats(),
    st.integers(),
    st.booleans(),
    st.sampled_from(
        [
            10**400,
            -(10**400),
            1e160,
            5e-324,
            Decimal("1.5"),
            Fraction(1, 3),
            1j,
            np.float32(2),
            np.int8(3),
        ]
    ),
)
odd = st.one_of(
    st.none(),
    numbers,
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(numbers, max_size=3),
    st.dictionaries(st.text(max_size=2), numbers, max_size=2),
    st.sampled_from([object(), np.zeros(2), np.ones((2, 2)), np.array(["a"]), pd.Series([1.0]), int,
                     lambda *_: 1.0, np.array(1.0), np.datetime64("2020-01-01"), pd.NA,
                     frozenset({"X"}), range(3)]),
)  # fmt: skip
names = st.one_of(
    st.sampled_from(["X", "Z", "Y", "x", "do(X)", "", " ", "chain", "b[X->Z]", "β", "a/b"]), odd
)


@contextlib.contextmanager
def only_our_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", cb.CausalBOWarning)
        with contextlib.suppress(cb.CausalBOError):
            yield


@pytest.fixture(scope="module")
def fitted(chain):
    return cb.fit(chain.problem, chain.observe(40, 0))


def hashable_keys(values):
    """Dictionaries with keys from a strategy of anything."""
    return st.lists(st.tuples(names.filter(is_hashable), values), max_size=3).map(dict)


def is_hashable(value):
    try:
        return isinstance(hash(value), int)
    except TypeError:
        return False


@fuzz
@given(st.one_of(st.text(alphabet="XYZxyz -><;,|\n\t\0{}[]\"'é", max_size=40), odd))
def test_graphs_from_any_text(text):
    with only_our_errors():
        cb.CausalGraph.parse(text)


@fuzz
@given(st.one_of(odd, st.lists(st.one_of(odd, st.tuples(names, names)), max_size=4)), odd)
def test_graphs_from_any_edges(directed, bidirected):
    with only_our_errors():
        cb.CausalGraph.from_edges(directed, bidirected)


@fuzz
@given(
    st.one_of(odd, hashable_keys(st.one_of(odd, st.tuples(numbers, numbers)))),
    st.dictionaries(
        st.sampled_from(["objective", "sets", "costs", "known", "identifiable_only"]),
        st.one_of(odd, hashable_keys(odd), st.lists(st.one_of(odd, st.tuples(names)), max_size=2)),
        max_size=2,
    ),
    st.one_of(st.just("Y"), names),
)
def test_problems_with_any_domains_and_options(domains, options, target):
    graph = cb.CausalGraph.parse("X -> Z -> Y")
    with only_our_errors():
        cb.Problem(graph, target, **({"domains": domains} | options))


@fuzz
@given(st.one_of(odd, st.lists(st.one_of(odd, hashable_keys(numbers)), max_size=3)))
def test_queries_from_any_interventions(chain, interventions):
    with only_our_errors():
        chain.problem.queries(interventions)


columns = st.lists(st.one_of(numbers, st.text(max_size=3), st.none()), min_size=4, max_size=4)


@fuzz
@given(
    st.dictionaries(st.one_of(st.sampled_from(["X", "Z", "Y", "do(X)", "DO(Z)", "extra"]),
                              odd.filter(is_hashable)),
                    columns, max_size=6),
    st.sampled_from(["plain", "multi", "twice", "index", "category", "dates"]),
    st.one_of(st.none(), odd),
)  # fmt: skip
def test_observations_from_any_table(chain, table, kind, intervened):
    try:
        frame = pd.DataFrame(table)
        if kind == "multi" and frame.shape[1]:
            frame.columns = pd.MultiIndex.from_product([frame.columns.map(str), ["a"]])
        elif kind == "twice" and frame.shape[1]:
            frame = pd.concat([frame, frame.iloc[:, :1]], axis=1)
        elif kind == "index":
            frame.index = [0] * len(frame)
        elif kind in ("category", "dates") and "X" in frame:
            frame["X"] = frame["X"].astype("category" if kind == "category" else "datetime64[ns]")
    except Exception:  # pandas itself refuses
        return
    with only_our_errors():
        cb.Data.from_frame(chain.problem, frame, intervened=intervened)


@fuzz
@given(st.binary(max_size=60))
def test_observations_from_any_file(chain, tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    path.write_bytes(b"X,Z,Y\n" + content)
    with only_our_errors():
        cb.Data.from_csv(chain.problem, path)


@fuzz
@given(odd, st.one_of(st.none(), odd))
def test_a_surrogate_is_updated_anything(chain, fitted, outcome, noise):
    with only_our_errors():
        updated = cb.surrogates.couple(fitted).condition(
            chain.problem.queries([{"Z": 1.0}]), outcome, noise
        )
        predicted = updated.predict(chain.problem.vertices())
        assert np.isfinite(predicted.mean).all() and np.isfinite(predicted.sd).all()


@few
@given(st.one_of(odd, st.lists(numbers, min_size=2, max_size=2)))
def test_an_experiment_returns_anything(chain, answer):
    with only_our_errors():
        found = optimize(chain.problem, data=chain.observe(40, 0), experiment=lambda q: answer,
                            rounds=2, batch=2, key=0)  # fmt: skip
        assert np.isfinite([found.best.mean, found.best.sd]).all()


OPTIONS = ["preset", "noise", "acquisition", "kernel", "relinearize", "surrogate", "discrepancy",
           "learn_from", "report", "observations", "rounds", "budget", "batch", "inference",
           "prior", "data", "experiment", "key"]  # fmt: skip
small = odd.filter(lambda value: not (isinstance(value, int) and value > 3))


@few
@given(st.dictionaries(st.sampled_from(OPTIONS), small, min_size=1, max_size=2))
def test_optimize_with_any_settings(chain, options):
    with only_our_errors():
        optimize(chain, **({"rounds": 1, "observations": 40, "key": 0} | options))


FITTING = ["mechanisms", "method", "parameters", "intercepts", "prior", "outcomes", "linear", "key"]


@few
@given(st.dictionaries(st.sampled_from(FITTING), odd, min_size=1, max_size=2))
def test_fit_with_any_options(chain, options):
    with only_our_errors():
        cb.fit(chain.problem, chain.observe(40, 0), **options)


PRIOR = [
    "slope_sd",
    "intercept_sd",
    "noise_sd",
    "noise_observations",
    "scales",
    "centres",
    "slopes",
    "latent_sd",
]


@fuzz
@given(
    st.dictionaries(
        st.sampled_from(PRIOR), st.one_of(odd, hashable_keys(odd)), min_size=1, max_size=2
    )
)
def test_priors_with_any_numbers(chain, options):
    with only_our_errors():
        post = cb.fit(chain.problem, chain.observe(40, 0), prior=cb.priors.FixedPrior(**options))
        assert np.isfinite(post.mean).all() and np.isfinite(post.covariance).all()


@few
@given(odd, odd)
def test_draws_with_any_count_and_key(fitted, count, key):
    if isinstance(count, int) and count > 10**6:
        count = 10**6
    with only_our_errors():
        fitted.draws(count, key)


@few
@given(st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=4)),
                min_size=1, max_size=3),
       st.integers(0, 10**6))  # fmt: skip
def test_files_of_any_bytes(chain, fitted, tmp_path_factory, changes, cut):
    folder = tmp_path_factory.getbasetemp()
    whole = folder / "whole.nc"
    if not whole.exists():
        fitted.save(whole, draws=20)
    content = bytearray(whole.read_bytes())
    for position, piece in changes:
        content[position % len(content) : position % len(content) + len(piece)] = piece
    path = folder / "changed.nc"
    path.write_bytes(content[: cut % (2 * len(content))])
    with only_our_errors():
        assert cb.Posterior.load(path, chain.problem).fingerprint == fitted.fingerprint


@few
@given(
    st.one_of(
        odd,
        st.recursive(odd, lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    )
)
def test_networks_of_any_content(tmp_path_factory, content):
    import json

    path = tmp_path_factory.getbasetemp() / "network.json"
    path.write_text(json.dumps(content, default=str))
    with only_our_errors():
        cb.models.gaussian_network(path, target="Y")
