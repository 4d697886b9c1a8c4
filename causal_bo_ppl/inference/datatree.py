"""How does a posterior become ArviZ's DataTree and a netCDF file, and how is it loaded again?

A tree has ArviZ's usual groups with named coordinates; `SCHEMA` lists what they may hold. Groups
with a number for every draw and observation grow with the product of both: by default predictions
are made for some draws, and log likelihoods, which need all draws, on request.

`constant_data` holds the observations, `unconstrained_posterior` what a sampler
drew, and the attribute `recipe` the arguments of `fit`, so that a posterior can be computed again.

A file is netCDF with the SHA-256 of its bytes in a last line after them, which readers of netCDF
ignore. The checksum is verified before anything is interpreted. It detects damage and edits but is
no signature, so links to other data, declared sizes, the version, the schema and the problem's
fingerprint are checked too before data are loaded.
"""

import errno
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.observations import Outcomes
from causal_bo_ppl.errors import (
    ArgumentError,
    CausalBOError,
    MechanismError,
    PosteriorError,
    StoreError,
    listed,
)
from causal_bo_ppl.inference.draws import (
    Drawn,
    InferenceMethod,
    ObservationModel,
    Recipe,
    ThetaDistribution,
    effects_of_draws,
    require_prior,
    trait,
)
from causal_bo_ppl.inputs import read_count, read_key, write_key
from causal_bo_ppl.mechanisms import (
    read_prior,
    read_written_mechanisms,
    write_mechanisms,
    write_prior,
)
from causal_bo_ppl.mechanisms.base import DescribedMap, Model, NamedModel, NoiseModel, Task
from causal_bo_ppl.mechanisms.scm import GP_DIMENSIONS
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import labels, read_interventions

if TYPE_CHECKING:
    import xarray as xr

    from causal_bo_ppl.inference.posterior import Posterior


class Field(NamedTuple):
    """The dimensions of a variable, {} standing for its name, and the types it may have."""

    dims: tuple[str, ...]
    types: tuple[str, ...] = ("f8",)


ANY_NAME = "*"
DRAW_DIMS = ("chain", "draw")
FLAG_TYPES = ("b1",)
NUMBER_TYPES = ("b1", "i4", "i8", "u4", "f4", "f8")
PARAMETER_DIMENSIONS = {
    "theta": "coordinate",
    "effect": "intervention",
    "b": "edge",
    "a": "node",
    "sd": "node",
    "t": "arc",
    **GP_DIMENSIONS,
}
PARAMETERS = {name: Field((*DRAW_DIMS, dim)) for name, dim in PARAMETER_DIMENSIONS.items()}
SCHEMA: dict[str, dict[str, Field]] = {
    "posterior": PARAMETERS,
    "prior": PARAMETERS,
    "unconstrained_posterior": {"psi": Field((*DRAW_DIMS, "unconstrained"))},
    "log_prior": {"prior": Field(DRAW_DIMS)},
    "sample_stats": {ANY_NAME: Field(DRAW_DIMS, NUMBER_TYPES)},
    "log_likelihood": {ANY_NAME: Field((*DRAW_DIMS, "observation[{}]"))},
    "posterior_predictive": {ANY_NAME: Field((*DRAW_DIMS, "observation[{}]"))},
    "prior_predictive": {ANY_NAME: Field((*DRAW_DIMS, "observation[{}]"))},
    "observed_data": {ANY_NAME: Field(("observation[{}]",))},
    "constant_data": {
        "values": Field(("observation", "node")),
        "was_set": Field(("observation", "node"), FLAG_TYPES),
        "outcome": Field(("experiment",)),
        "experiment_values": Field(("experiment", "node")),
        "experiment_was_set": Field(("experiment", "node"), FLAG_TYPES),
    },
}
PREDICTED_GROUPS = ("prior_predictive", "posterior_predictive", "observed_data")
POINTWISE_GROUPS = ("log_likelihood", *PREDICTED_GROUPS)
MOST_NUMBERS = 20_000_000  # in one pointwise group: 160 MB
PREDICTED_DRAWS = 200  # that predictions are made for by default
FILE_FORMAT = "5"  # raise it when a reader of the one before would misread a file
LARGEST_FILE = 4 * 2**30  # bytes that a file may have and declare together
CHECKSUM_LABEL = b"\ncausal_bo_ppl sha256 "
GIVEN_DRAWS = "given draws"  # the method of a posterior made from given draws
THETA_TOLERANCE = 1e-9  # by which theta of the same draws may differ on another processor
SAVE_AGAIN = "fit and save it again with post.save(path)"


def to_datatree(
    post: "Posterior",
    write_method: Callable[[Any], object],
    draws: object,
    key: jax.Array,
    observations: object,
    effects: object,
) -> "xr.DataTree":
    """Return the tree of a posterior with all that `Posterior.load` needs to restore it.

    write_method: returns a method of inference as JSON takes it. The other arguments are those of
    `Posterior.to_datatree`, which are checked before anything is drawn.
    """
    import xarray as xr

    count = None if draws is None else read_count("draws", draws, 4)
    wanted = _read_groups(observations)
    queries = None if effects is None else read_interventions(post.problem, effects)
    if queries is not None:
        if not len(queries):
            raise ArgumentError("effects names no intervention; give some, such as [{'X': 1.0}]")
        post.distribution.response.batch(queries)
    problem, distribution = post.problem, post.distribution
    for_draws, for_observations, for_prior = jax.random.split(key, 3)
    names: dict[str, Any] = _parameter_names(post)
    drawn = distribution.drawn(count, for_draws)
    values, free = post.learned_observations if wanted else (np.zeros((0, 0)), np.zeros((0, 0)))
    most = max(4, MOST_NUMBERS // max(free.size, 1))
    if observations is None:
        most = min(most, PREDICTED_DRAWS)
    elif wanted:
        drawn = drawn.thinned(most)
    before, missing = _draw_before(post, len(drawn.theta), for_prior)
    is_asked = observations is not None and not isinstance(observations, bool)
    if missing and is_asked and "prior_predictive" in wanted:
        raise PosteriorError(missing)
    numbers: dict[str, dict[str, np.ndarray]] = {}
    groups = {"posterior": _parameters(drawn, distribution)}
    if drawn.log_prior is not None:
        groups["log_prior"] = {"prior": _split(drawn, drawn.log_prior)}
    groups["sample_stats"] = drawn.stats
    if before is not None:
        groups["prior"] = _parameters(before, distribution)
    if queries is not None:
        names["intervention"] = labels(problem, queries)
        for group, source in (("posterior", drawn), ("prior", before)):
            if source is not None:
                groups[group]["effect"] = _effects(source, distribution, queries)
    psi = getattr(distribution, "psi", None)
    if psi is not None and psi.shape[0] * psi.shape[1] == len(drawn.theta):  # all draws are kept
        groups["unconstrained_posterior"] = {"psi": psi}
        names["unconstrained"] = distribution.model.coordinates  # type: ignore[union-attr]
    if wanted:
        nodes = problem.graph.ancestral(problem.target).nodes
        indices = map(np.flatnonzero, free.T)
        names |= {f"observation[{name}]": each for name, each in zip(nodes, indices, strict=True)}
        if len(values) and distribution.model is not None:
            known = Observed(distribution.model, values, free)
            groups |= known.groups(drawn, wanted)
            keys = for_observations, jax.random.fold_in(for_prior, 1)
            sources = {"posterior_predictive": drawn, "prior_predictive": before}
            for (group, source), each in zip(sources.items(), keys, strict=True):
                if group in wanted and source is not None:
                    groups[group] = known.predict(source.thinned(most), each)
                    step, length = -(-len(source.theta) // most), len(source.theta)
                    numbers[group] = {"draw": np.arange(0, length // source.chains, step)}
        if drawn.outcome_log_densities is not None and "log_likelihood" in wanted:
            outcomes = {f"do({problem.target})": _split(drawn, drawn.outcome_log_densities)}
            groups["log_likelihood"] = groups.get("log_likelihood", {}) | outcomes
    datasets = {  # in predictions `draw` counts the draws of the parameters
        group: _dataset(group, arrays, names | numbers.get(group, {}))
        for group, arrays in groups.items()
        if arrays
    }
    if before is not None:
        for group in {"prior", "prior_predictive"} & set(datasets):
            datasets[group].attrs["note"] = before.note
    tree = xr.DataTree.from_dict(datasets)
    if kept := _observations(post):
        tree["constant_data"] = _dataset("constant_data", kept, {"node": post.data.nodes})
    tree.attrs = _attributes(post) | {"recipe": _write_recipe(post, write_method)}
    if missing:
        tree.attrs["no_prior"] = missing
    return tree


def _draw_before(post: "Posterior", n: int, key: jax.Array) -> tuple[Drawn | None, str]:
    """Draw about n times from the prior; None, and the reason, where nothing can be drawn."""
    try:
        return require_prior("prior_predictive", post.distribution.draw_prior, n, key), ""
    except PosteriorError as error:
        return None, str(error)


def _read_groups(observations: object) -> tuple[str, ...]:
    """Return the pointwise groups that `observations` asks for."""
    if observations is None:
        return PREDICTED_GROUPS
    if isinstance(observations, bool):
        return POINTWISE_GROUPS if observations else ()
    names = [observations] if isinstance(observations, str) else observations
    if not isinstance(names, list | tuple) or not all(name in POINTWISE_GROUPS for name in names):
        raise ArgumentError(
            "observations must be True, False, None or some of the groups "
            f"{listed(POINTWISE_GROUPS)}; got {observations!r}"
        )
    return tuple(names)


def _attributes(post: "Posterior") -> dict[str, str]:
    """Return the attributes of a tree, by which `Posterior.load` restores and checks it."""
    import causal_bo_ppl

    described = post.distribution.response
    return {
        "causal_bo_ppl": causal_bo_ppl.__version__,
        "format": FILE_FORMAT,
        "problem": post.problem.fingerprint,
        "posterior": post.fingerprint,
        "method": post.method,
        "mechanisms": post.mechanisms,
        "verdict": post.verdict,
        "accepted": post.accepted,
        "draws": "independent" if post.distribution.chains is None else "as sampled in chains",
    } | (described.attributes() if isinstance(described, DescribedMap) else {})


def _parameter_names(post: "Posterior") -> dict[str, tuple[str, ...]]:
    """Return the names along the dimensions of theta and of the parameters by name."""
    nodes = post.problem.graph.ancestral(post.problem.target).nodes
    pairs = zip(nodes, post.distribution.learned, strict=True)
    names = {"coordinate": post.names, "node": tuple(name for name, learned in pairs if learned)}
    model = post.distribution.model
    return names | (model.labels if isinstance(model, NamedModel) else {})


def _field(group: str, name: str) -> Field:
    """Return the field of a variable in the schema; one without types where it has none."""
    fields = SCHEMA.get(group, {})
    field = fields.get(name, fields.get(ANY_NAME, Field((), ())))
    return field._replace(dims=tuple(dim.format(name) for dim in field.dims))


def _dataset(group: str, arrays: Mapping[str, Any], names: Mapping[str, Any]) -> "xr.Dataset":
    """Return a group over the dimensions of its schema; dimensions without names are numbered."""
    import xarray as xr

    variables, coords = {}, {}
    for name, values in arrays.items():
        dims = _field(group, name).dims
        variables[name] = (dims, values)
        for dim, size in zip(dims, np.shape(values), strict=True):
            coords[dim] = list(names[dim]) if dim in names else np.arange(size)
    return xr.Dataset(variables, coords)


def _split(drawn: Drawn, values: np.ndarray) -> np.ndarray:
    """Return values (n, ...) as (chains, n / chains, ...)."""
    return values.reshape(drawn.chains, -1, *values.shape[1:])


def _parameters(drawn: Drawn, distribution: ThetaDistribution) -> dict[str, np.ndarray]:
    """Return theta of every draw, and the parameters by name, as far as they are known."""
    found, model = {"theta": drawn.theta}, distribution.model
    if isinstance(model, NamedModel):
        found |= model.named(drawn.models, drawn.hyperparameters)
    if isinstance(model, NoiseModel) and (sds := model.scales(drawn.models)) is not None:
        found["sd"] = sds[:, distribution.learned]
    return {name: _split(drawn, part) for name, part in found.items() if part.shape[1]}


def _effects(drawn: Drawn, distribution: ThetaDistribution, queries: Queries) -> np.ndarray:
    """Return the effects of every draw; NaN for a draw of theta that has no value."""
    known = np.isfinite(drawn.theta).all(axis=1)
    effects = np.full((len(drawn.theta), len(queries)), np.nan)
    effects[known] = effects_of_draws(distribution.response, drawn.theta[known], queries)
    return _split(drawn, effects)


class Observed(NamedTuple):
    """Observations (n, p) of the variables of a model, and which inform a density, (n, p)."""

    model: ObservationModel
    values: np.ndarray
    free: np.ndarray

    def groups(self, drawn: Drawn, wanted: tuple[str, ...]) -> dict[str, dict[str, np.ndarray]]:
        """Return log likelihoods and observations of every learned variable, where wanted."""
        groups = {}
        if "log_likelihood" in wanted:
            logs = self.model.log_densities(drawn.models, self.values, self.free)
            groups["log_likelihood"] = self._by_variable(drawn, logs)
        if "observed_data" in wanted:
            columns = zip(self.model.nodes, self.values.T, self.free.T, strict=True)
            groups["observed_data"] = {name: v[which] for name, v, which in columns if which.any()}
        return groups

    def predict(self, drawn: Drawn, key: jax.Array) -> dict[str, np.ndarray]:
        """Return a new observation of every learned variable for every draw and observation.

        What was set, and variables that are not learned, are as they were.
        """
        given = Queries(~self.free, np.where(self.free, 0.0, self.values))
        return self._by_variable(drawn, self.model.replicate(drawn.models, given, key))

    def _by_variable(self, drawn: Drawn, array: np.ndarray) -> dict[str, np.ndarray]:
        """Return an array (n, m, p) by the name of each variable that was observed somewhere."""
        parts = zip(self.model.nodes, np.moveaxis(array, 2, 0), self.free.T, strict=True)
        return {name: _split(drawn, part[:, which]) for name, part, which in parts if which.any()}


def _observations(post: "Posterior") -> dict[str, np.ndarray]:
    """Return the observations, and outcomes of which only the target is known, where any are."""
    arrays: dict[str, np.ndarray] = {}
    if post.n_observations:
        arrays |= {"values": post.data.values, "was_set": post.data.intervened}
    if post.recipe is not None and len(post.recipe.task.outcomes.values):
        queries, arrays["outcome"] = post.recipe.task.outcomes
        arrays["experiment_values"] = np.asarray(queries.value)
        arrays["experiment_was_set"] = np.asarray(queries.mask)
    return arrays


def _write_recipe(post: "Posterior", write_method: Callable[[Any], object]) -> str:
    """Return the arguments of `fit` as JSON; an empty text where nothing was fitted."""
    if post.recipe is None:
        return ""
    mechanisms, method, task, key = post.recipe
    try:
        prior = None if task.prior is None else write_prior(task.prior)
    except MechanismError:  # user-defined
        prior = {"name": type(task.prior).__name__}
    record = {
        "mechanisms": write_mechanisms(mechanisms),
        "method": write_method(method),
        "prior": prior,
        "parameters": task.parameters,
        "intercepts": task.intercepts,
        "linear": task.linear,
        "key": None if key is None else write_key(key),
        "parts": [len(part) for part in post.parts],
    }
    return json.dumps(record, allow_nan=False)


def save_tree(tree: "xr.DataTree", path: str | Path) -> Path:
    """Write a tree as netCDF with a checksum, whole or not at all, and return the file's path."""
    target = _read_path(path)
    with tree.to_netcdf(engine="h5netcdf") as view:  # Python 3.13 complains of an open view
        data = bytes(view)
    replace_file(target, data, checksum_line(data))
    return target


def _read_path(path: object) -> Path:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise StoreError(f"a file needs a path, got {path!r}")
    return Path(os.path.realpath(text))  # the target of a symbolic link is written, not the link


def checksum_line(data: bytes | memoryview) -> bytes:
    """Return the line that ends a file: the checksum of all bytes before it."""
    return CHECKSUM_LABEL + hashlib.sha256(data).hexdigest().encode() + b"\n"


def require_checksum(data: bytes) -> None:
    """Refuse the bytes of a file that does not end with the checksum of what is before it."""
    length = len(checksum_line(b""))
    if data[-length:] != checksum_line(memoryview(data)[:-length]):
        raise StoreError(
            "does not match the checksum at its end: it was damaged, cut off or edited, or another "
            f"program wrote it; take an intact copy, or {SAVE_AGAIN}"
        )


def replace_file(path: Path, *pieces: bytes) -> None:
    """Replace the file at `path`, links resolved, by these bytes, or leave everything as it was.

    The bytes are written to a temporary file in the same directory, which then replaces the target.
    An existing file keeps its permissions.

    Raises
    ------
    StoreError
        If the target is no regular file, or the system refuses a step. What was at `path` is
        unchanged then, and no temporary file remains.
    """
    part = path.parent / f".causal_bo_ppl-{uuid4().hex}.part"
    try:
        mode = os.lstat(path).st_mode if os.path.lexists(path) else None
        if mode is not None and not stat.S_ISREG(mode):
            raise OSError(errno.EEXIST, "it exists and is no regular file")
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        try:
            if mode is not None:
                os.fchmod(descriptor, stat.S_IMODE(mode) & 0o777)
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
            os.replace(part, path)
        except BaseException:  # an interrupt too
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(
            f"cannot write {sum(map(len, pieces)):,} bytes to {str(path)!r}: {error.strerror}; "
            "choose a path that can be written, or free space on the disk. Nothing was changed"
        ) from error
    with suppress(OSError):  # where the file system can, the rename survives a loss of power
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class UserDefined(NamedTuple):
    """The arguments of `fit` that a file cannot hold; None where they are not given."""

    mechanisms: Any = None
    method: Any = None
    prior: Any = None


class Saved(NamedTuple):
    """A saved posterior whose tree passed all checks.

    recipe: the arguments of `fit`; None for given draws. parts: observations of the first fit and
    of each update.
    """

    tree: Any
    recipe: Recipe | None
    parts: tuple[Data, ...]

    def resume(self, model: Model) -> ThetaDistribution:
        """Return the posterior of a model with the draws that the tree holds."""
        for part in self.parts[1:]:
            model = model.with_observations(part)
        groups = {name: group.data_vars for name, group in self.tree.children.items()}
        psi, kept = groups["unconstrained_posterior"]["psi"].values, groups.get("sample_stats", {})
        stats, sizes = {str(name): kept[name].values for name in kept}, map(len, self.parts)
        recipe: Any = self.recipe
        distribution = recipe.method.resume(model, psi, stats, recipe.key, [*accumulate(sizes)])
        theta, chains = self.tree["posterior"]["theta"].values, distribution.chains
        close = THETA_TOLERANCE * np.abs(theta).max()
        if chains.shape != theta.shape or not (np.abs(chains - theta) <= close).all():
            raise StoreError(f"has draws of theta that are not those of its chains; {SAVE_AGAIN}")
        return distribution  # type: ignore[no-any-return]


@contextmanager
def reading(source: object) -> Iterator[None]:
    """Turn errors while a saved posterior is restored into a StoreError that names its source."""
    where = repr(str(source)) if isinstance(source, str | os.PathLike) else "the tree"
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{where} {error}") from None
    except (CausalBOError, LookupError, TypeError, ValueError) as error:  # a tree may be edited
        raise StoreError(
            f"{where} cannot be restored, {type(error).__name__}: {error}; {SAVE_AGAIN}"
        ) from error


def read_saved(
    source: object,
    problem: Problem,
    user: UserDefined,
    largest: int,
    read_method: Callable[[object], InferenceMethod],
) -> Saved:
    """Return a saved posterior from a file or a tree; see `Posterior.load` for what is refused.

    read_method: returns the method of inference that was written, or that the user gives.
    """
    import xarray as xr

    if not isinstance(problem, Problem):
        kind = type(problem).__name__
        raise StoreError(f"needs a Problem to be loaded for, got {kind}; of a system take .problem")
    if isinstance(source, xr.DataTree):
        require_schema(source, problem)
        tree = source
    else:
        tree = _read_file(_read_path(source), problem, largest)
    if tree.attrs["method"] == GIVEN_DRAWS:
        return Saved(tree, None, ())
    record, nodes = json.loads(tree.attrs["recipe"]), problem.graph.nodes
    kept = _read_kept(tree, len(nodes))
    parts = tuple(
        Data(nodes, problem.target, kept["values"][start:end], kept["was_set"][start:end])
        for start, end in pairwise(accumulate(record["parts"], initial=0))
    )
    queries = Queries(kept["experiment_was_set"], kept["experiment_values"])
    options = {name: record[name] for name in ("parameters", "intercepts", "linear")}
    user = _read_user_defined(record, user)
    task = Task(problem, parts[0], Outcomes(queries, kept["outcome"]), user.prior, **options)
    key = None if record["key"] is None else read_key(record["key"])
    return Saved(tree, Recipe(user.mechanisms, read_method(user.method), task, key), parts)


def _read_kept(tree: Any, nodes: int) -> dict[str, np.ndarray]:
    """Return the arrays of `constant_data`, empty ones for those that it does not have."""
    sizes = {"observation": 0, "experiment": 0, "node": nodes}
    arrays = {
        name: np.zeros([sizes[dim] for dim in field.dims], field.types[0])
        for name, field in SCHEMA["constant_data"].items()
    }
    if "constant_data" in tree.children:
        arrays |= {str(name): each.values for name, each in tree["constant_data"].data_vars.items()}
    return arrays


def _read_user_defined(record: Mapping[str, Any], user: UserDefined) -> UserDefined:
    """Return mechanisms, method and prior, as they were written or, if user-defined, as given."""
    for name, given in user._asdict().items():
        written = record[name]
        is_known = not isinstance(written, dict) or "options" in written or "name" not in written
        if given is not None and is_known:
            raise StoreError(f"holds its {name}, {written!r}; leave out {name}=")
        if given is None and not is_known:
            raise StoreError(
                f"was fitted with user-defined {name}, {written['name']!r}, which a file cannot "
                f"hold; give it with Posterior.load(..., {name}=...)"
            )
    mechanisms, method, prior = user
    if prior is None and record["prior"] is not None:
        prior = read_prior(record["prior"])
    if mechanisms is None:
        mechanisms = read_written_mechanisms(record["mechanisms"])
    return UserDefined(mechanisms, method or record["method"], prior)


def _read_file(path: Path, problem: Problem, largest: int) -> "xr.DataTree":
    """Return the tree of a file, all of it in memory, after the checks that the module lists."""
    import h5py
    import xarray as xr

    options: dict[str, Any] = {"engine": "h5netcdf", "mask_and_scale": False, "decode_times": False}
    try:
        if not path.is_file():
            raise StoreError("is no file")
        _require_size(os.stat(path).st_size, largest)
        data = path.read_bytes()  # once: what is checked is what is read
        require_checksum(data)
        with h5py.File(io.BytesIO(data), "r") as file:
            _require_version(file.attrs.get("format"), file.attrs.get("causal_bo_ppl"))
            _require_size(len(data) + _declared_bytes(file), largest)
        with xr.open_datatree(io.BytesIO(data), **options) as opened:
            require_schema(opened, problem)
            # tree.load() passes over a variable with the name of a group: `prior` is both
            loaded = {name: opened[name].to_dataset().load() for name in ("/", *opened.children)}
    except StoreError:
        raise
    except Exception as error:  # a file of another program can fail anywhere in three libraries
        raise StoreError(f"cannot be read: {error}; {SAVE_AGAIN}") from error
    return xr.DataTree.from_dict(loaded)


def _require_size(total: int, largest: int) -> None:
    if total > largest:
        raise StoreError(f"declares {total:,} bytes, more than `largest`, which is {largest:,}")


def _require_version(form: object, version: object) -> None:
    """Refuse another format, and files by a newer version of the package."""
    import causal_bo_ppl

    ours = causal_bo_ppl.__version__
    if str(form) != FILE_FORMAT or not () < _release(version) <= _release(ours):
        raise StoreError(
            f"was written by version {version} of causal_bo_ppl, in format {form}; this is version "
            f"{ours}, which reads format {FILE_FORMAT}: upgrade the older of the two, or "
            f"{SAVE_AGAIN}"
        )


def _release(version: object) -> tuple[int, ...]:
    """Return the leading numbers of a version: (0, 1, 0) of "0.1.0.dev3"."""
    return tuple(map(int, re.findall(r"\d+", str(version).partition("+")[0])[:3]))


def _declared_bytes(file: Any) -> int:
    """Return the bytes that an HDF5 file declares; refuse links and data kept in other files."""
    import h5py

    def members(group: Any, kind: type) -> Iterator[Any]:
        for name in group:
            is_link = not isinstance(group.get(name, getlink=True), h5py.HardLink)
            if is_link or not isinstance(group[name], kind):
                what = "a link" if is_link else f"a {type(group[name]).__name__}"
                raise StoreError(f"holds {what} at {name!r}, which no saved posterior has")
            yield group[name]

    total = 0
    for group in members(file, h5py.Group):
        for found in members(group, h5py.Dataset):
            if found.is_virtual or found.external:
                raise StoreError(f"keeps {found.name!r} in another file; it is not opened")
            total += (found.size or 0) * found.dtype.itemsize
    return total


def require_schema(tree: "xr.DataTree", problem: Problem) -> None:
    """Refuse a tree, loaded or not, that is of another problem or does not follow `SCHEMA`."""
    if str(tree.attrs.get("problem")) != problem.fingerprint:
        raise StoreError(
            "is of another problem (graph, target, domains, sets or known coefficients differ); "
            "load it with the problem it was fitted for"
        )
    if "posterior" not in tree.children or "theta" not in tree["posterior"].data_vars:
        raise StoreError(f"holds no draws of theta; {SAVE_AGAIN}")
    for node in tree.subtree:
        group = node.path.strip("/")
        if group and group not in SCHEMA:
            raise StoreError(f"has the group {group!r}, which no saved posterior has")
        for name, values in node.data_vars.items():
            field = _field(group, str(name))
            if values.dims != field.dims or values.dtype.str[1:] not in field.types:
                raise StoreError(
                    f"has {name!r} in {group!r} over {values.dims} of type {values.dtype}, not as "
                    f"a saved posterior has it: {field}"
                )
    if "constant_data" in tree.children:
        _require_names(tree, "constant_data", "node", problem.graph.nodes)


def _require_names(tree: Any, group: str, dim: str, expected: tuple[str, ...]) -> None:
    """Refuse a group whose dimension, where it has that, has other names or another order."""
    coords, sizes = tree[group].coords, tree[group].sizes
    found = tuple(map(str, coords[dim].values)) if dim in coords else ()
    if dim in sizes and found != expected:
        raise StoreError(
            f"has the {dim} names {listed(found, 8)} in {group!r}; this posterior has "
            f"{listed(expected, 8)}, in this order"
        )


def require_same(tree: Any, post: "Posterior") -> None:
    """Refuse a restored posterior that is not the one that was saved."""
    if (post.fingerprint, post.verdict) != tuple(map(tree.attrs.get, ("posterior", "verdict"))):
        raise StoreError(
            "gives another posterior than the one that was saved: observations, prior, method, "
            "functions, verdict or draws differ, or only some draws were kept; "
            f"{SAVE_AGAIN} without draws="
        )
    for group in [each for each in ("posterior", "prior") if each in tree.children]:
        for dim, names in _parameter_names(post).items():
            _require_names(tree, group, dim, names)
        sd = tree[group].data_vars.get("sd", np.ones(1))
        if not ((sd > 0) & (np.isfinite(sd) | (group == "prior"))).all():
            raise StoreError(f"has sds in {group!r} that are not positive; {SAVE_AGAIN}")
    theta = tree["posterior"]["theta"].values
    is_moments = post.recipe is not None and trait(post.recipe.method, "learns_moments")
    # a ratio of moments whose denominator passes zero has no value: NaN
    if not (~np.isinf(theta) if is_moments else np.isfinite(theta)).all():
        raise StoreError(f"has draws of theta that are not finite; {SAVE_AGAIN}")
