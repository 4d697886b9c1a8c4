"""What was told, what is believed now, and what surprised? A study as tables."""

import html
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from causal_bo_ppl.campaign.told import FOREIGN, Record
from causal_bo_ppl.optimization.run import CHOSEN
from causal_bo_ppl.problem.queries import set_label

if TYPE_CHECKING:
    from causal_bo_ppl.campaign.study import Study


def tabulate(study: "Study") -> pd.DataFrame:
    """Return a row for everything that was told; see `Study.to_frame`."""
    records, problem, blank = study.records, study.problem, math.nan
    nodes, count = problem.graph.nodes, len(records)
    mask = np.array([np.asarray(each.query.mask)[0] for each in records], bool)
    value = np.array([np.asarray(each.query.value)[0] for each in records], float)
    mask, value = mask.reshape(count, len(nodes)), value.reshape(count, len(nodes))
    columns: dict[str, Any] = {
        "asked": pd.array([each.number for each in records], dtype="Int64"),
        "set": [
            set_label(tuple(name for name, on in zip(nodes, row, strict=True) if on))
            for row in mask
        ],
    }
    for at, name in enumerate(nodes):
        if mask[:, at].any() or name in problem.manipulable:
            columns[f"do({name})"] = np.where(mask[:, at], value[:, at], blank)
    seen = study.surprise.arrays
    was_predicted = np.array([each.predicted is not None for each in records], bool)
    for name, found in (("expected", seen.mean), ("spread", seen.spread)):
        columns[name] = np.full(count, blank)
        columns[name][was_predicted] = found
    columns["outcome"] = np.array([each.outcome for each in records], float)
    columns["z"] = np.full(count, blank)
    columns["z"][was_predicted] = seen.z
    columns["variance"] = np.array([each.variance for each in records], float)
    columns["whole_row"] = [each.row is not None for each in records]
    columns["cost"] = [each.cost for each in records]
    columns["failed"] = [each.failed for each in records]
    columns["note"] = [_note(each) for each in records]
    return pd.DataFrame(columns, index=pd.Index(range(1, count + 1), name="told"))


def _note(record: Record) -> str:
    if not record.is_foreign:
        return ""
    return FOREIGN.split(":")[0] if record.failed else FOREIGN


def describe_best(study: "Study") -> str:
    """Return what is recommended, in words; before any outcome it is the model's."""
    whose = "best" if study.best.by == "outcomes" else "the model's best"
    return f"{whose} {study.best.belief}"


def write_html(study: "Study") -> str:
    """Return tables of what was told and of what is believed now, and what surprised."""
    shown: dict[str, Any] = {"float_format": "{:.4g}".format, "na_rep": "", "max_rows": 60}
    told = "<p>Nothing was told yet.</p>"
    if study.records:
        told = f"<p>What was told:</p>{study.to_frame().to_html(**shown)}"
    own = [each.query for each in study.records if not (each.is_foreign or each.is_passive)]
    rows = [study.best.intervention, *(study.problem.interventions(each)[0] for each in own)]
    distinct = list({tuple(each.items()): each for each in rows}.values())
    believed = study.effects(distinct).to_html(index=False, **shown)
    enough = f"<p>It is enough: {html.escape(study.stopped)}.</p>" if study.stopped else ""
    return (
        f"<p><strong>{html.escape(repr(study))}</strong></p><p>{html.escape(CHOSEN)}</p>{told}"
        f"<p>What is believed now:</p>{believed}"
        f"<p>What surprised: {html.escape(study.surprise.message)}</p>{enough}"
    )
