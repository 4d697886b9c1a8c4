"""How is a study written as a JSON text without code, and read back?

The text holds the problem, the settings, the key, a digest of the rows it began with, and all that
was told. What is believed follows from these, so that it is not written. A checksum guards against
accidents.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from causal_bo_ppl.campaign.told import Record
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, StoreError
from causal_bo_ppl.inputs import read_key, write_key
from causal_bo_ppl.optimization.beginnings import find_versions
from causal_bo_ppl.optimization.contradictions import Said
from causal_bo_ppl.optimization.predicted_outcomes import PredictedOutcome
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import named

FORMAT = 1
AGAIN = "write the text again with study.to_json()"


class Written(NamedTuple):
    """What a text holds of a study."""

    problem: Problem
    settings: Settings
    key: jax.Array
    digest: str
    records: tuple[Record, ...]
    said: Said


def write_study(
    problem: Problem,
    settings: Settings,
    key: jax.Array,
    digest: str,
    records: tuple[Record, ...],
    said: Said,
) -> str:
    """Return the JSON text of a study."""
    record = {
        "format": FORMAT,
        "kind": "study",
        "versions": dict(find_versions()),
        "problem": json.loads(problem.to_json()),
        "settings": json.loads(settings.to_json()),
        "key": write_key(key),
        "data_digest": digest,
        "told": [_write_record(problem, each) for each in records],
        "said": list(said),
    }
    return json.dumps(record | {"checksum": _checksum(record)}, allow_nan=False)


def read_study(text: str, functions: Mapping[str, Any] | None) -> Written:
    """Return what a text holds of a study.

    Raises
    ------
    StoreError
        If the text is none of a study, was cut off or changed, or is of a newer format.
    """
    try:
        record = json.loads(text)
    except (TypeError, ValueError) as error:
        is_path = isinstance(text, os.PathLike) or str(text).strip().endswith(".json")
        advice = "give the text of the file, Path(...).read_text()" if is_path else AGAIN
        raise StoreError(f"a study is read from a JSON text: {error}; {advice}") from None
    if not isinstance(record, dict) or record.get("kind") != "study":
        raise StoreError(f"this is no text of a study; {AGAIN}")
    if record.get("format") != FORMAT:
        raise StoreError(
            f"this study was written in format {record.get('format')!r} by "
            f"{record.get('versions')!r}; this version reads format {FORMAT}"
        )
    if record.pop("checksum", None) != _checksum(record):
        raise StoreError(
            f"this text of a study was cut off or changed: its checksum differs; {AGAIN}"
        )
    problem = Problem.from_json(json.dumps(record["problem"]), _called(functions))
    settings = Settings.from_json(json.dumps(record["settings"]), functions)
    records = tuple(_read_record(problem, each) for each in record["told"])
    key = read_key(record["key"])
    return Written(problem, settings, key, record["data_digest"], records, Said(*record["said"]))


def find_fingerprint(problem: Problem, settings: Settings, key: jax.Array, digest: str) -> str:
    """Return a hash of all that a study began with; `digest` is that of its rows."""
    prior = settings.prior  # one's own cannot be written
    parts = [
        problem.fingerprint,
        digest,
        replace(settings, prior=None).to_json(),
        "" if prior is None else str(prior.canonical()),
        str(write_key(key)),
    ]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def require_digest(written: str, found: str) -> None:
    """Refuse other rows than those that a study began with."""
    if written != found:
        raise DataError(
            f"these are other rows than those that the study began with (digest {found[:12]}..., "
            f"written was {written[:12]}...); give the same rows, in any order, and tell new ones"
        )


def _called(functions: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the functions among what was given; records of settings are given with them."""
    return None if functions is None else {k: v for k, v in functions.items() if callable(v)}


def _write_record(problem: Problem, record: Record) -> dict[str, Any]:
    pairs = zip(problem.graph.nodes, record.query.mask[0], record.query.value[0], strict=True)
    predicted = record.predicted
    return {
        "set": {name: float(value) for name, is_set, value in pairs if is_set},
        "outcome": record.outcome,
        "variance": record.variance,
        "row": None if record.row is None else record.row.values[0].tolist(),
        "number": record.number,
        "failed": record.failed,
        "cost": record.cost,
        "is_foreign": record.is_foreign,
        "predicted": None
        if predicted is None
        else [
            predicted.mean,
            predicted.sd,
            predicted.noise,
            predicted.outcome,
            predicted.degrees if math.isfinite(predicted.degrees) else None,
        ],
    }


def _read_record(problem: Problem, written: Mapping[str, Any]) -> Record:
    nodes = problem.graph.nodes
    mask = np.array([[name in written["set"] for name in nodes]])
    value = np.array([[float(written["set"].get(name, 0.0)) for name in nodes]])
    query, row, predicted = named(Queries(mask, value), nodes), None, None
    if written["row"] is not None:
        row = Data(nodes, problem.target, np.array([written["row"]], float), mask)
    if written["predicted"] is not None:
        mean, sd, noise, outcome, degrees = written["predicted"]
        degrees = math.inf if degrees is None else degrees
        predicted = PredictedOutcome(query, mean, sd, noise, outcome, degrees)
    return Record(
        query,
        written["outcome"],
        written["variance"],
        row,
        written["number"],
        written["failed"],
        written["cost"],
        written["is_foreign"],
        predicted,
    )


def _checksum(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, allow_nan=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
