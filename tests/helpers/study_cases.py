"""Runs that studies follow, a confounded problem, and all that a lab may report."""

import numpy as np
import pytest

import causal_bo_ppl as cb


def same(query, other):
    return np.array_equal(query.mask, other.mask) and np.array_equal(query.value, other.value)


def answer_of(rows, position):
    """Return what a run measured in one row of its log: the whole row, or the outcome alone."""
    one = rows.select(slice(position, position + 1))
    return one.rows(one.has_row) if one.has_row.all() else float(one.outcome[0])


def follow(of, data, settings, key, experiment=None):
    """Run `optimize`, and ask a study in each round; report to it what the run measured."""
    options = {"data": data, "settings": settings, "key": key, "progress": False}
    run = cb.optimize(of, experiment=experiment, **options)
    study = cb.Study(run.problem, data, settings, key=key)
    ran = {each.number: each for each in run.asked}
    asked = 0
    for number in range(1, settings.rounds + 1):
        rows = run.log.select(run.rounds == number)
        if not len(rows):
            with pytest.raises(cb.errors.DomainError, match="what is left pays for no experiment"):
                study.ask(settings.batch)
            break
        batch = study.ask(settings.batch)
        if rows.is_passive.any():
            assert batch[0].intervention == {} and batch[0].observations == len(rows)
            assert batch[0].number == rows.number[0]
            study = study.tell(batch[0], rows.rows(rows.is_passive), again=True)
            continue
        assert [each.number for each in batch] == rows.number.tolist()
        for suggestion in batch:
            suggested = ran[suggestion.number]
            assert same(suggestion.query, suggested.query)
            assert suggestion.mean == suggested.mean and suggestion.bound == suggested.bound
            asked += 1
        for position in reversed(range(len(batch))):
            study = study.tell(batch[position], answer_of(rows, position))
    assert asked == len(run) > 1
    assert study.best == run.best and study.spent == pytest.approx(run.log.cost.sum())
    if not run.log.is_passive[-1]:
        assert study.spent == pytest.approx(run.trace["total_cost"][-1])
    assert study.observations.digest == run.study.observations.digest
    return run, study


def confounded():
    """A problem whose effects are learned by the front door, its data and an experiment."""
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-2.0, 2.0), "Z": (-2.0, 2.0)})
    rng = np.random.default_rng(0)

    def draw(n, x=None, z=None):
        u = rng.normal(size=n)
        x = u + rng.normal(size=n) if x is None else np.full(n, x)
        z = 0.8 * x + rng.normal(size=n) if z is None else np.full(n, z)
        made = {"X": x, "Z": z, "Y": -z + u + 0.5 * rng.normal(size=n)}
        return np.column_stack([made[name] for name in graph.nodes])

    def experiment(queries):
        rows = [
            draw(1, **{name.lower(): value for name, value in each.items()})
            for each in problem.interventions(queries)
        ]
        return cb.Data(graph.nodes, "Y", np.concatenate(rows), np.asarray(queries.mask))

    seen = draw(150)
    return problem, cb.Data(graph.nodes, "Y", seen, np.zeros_like(seen, bool)), experiment


def reports(chain):
    """Return all kinds of reports: numbers, replicates, variances, observations and a failure.

    Among them are an outcome beyond its domain and an observation in which nothing was set.
    """
    rows = chain.experiment(chain.problem.queries([{"Z": 2.0}, {"X": -3.0}]), 3)
    return [
        (({"X": 5.0}, -5.0), {}),
        (({"X": 5.0}, [-5.2, -4.7]), {}),
        (({"Z": -1.0}, 1.5), {"variance": 0.3}),
        (({"Z": 2.0}, rows.select(slice(0, 1))), {}),
        ((rows.select(slice(1, 2)),), {}),
        (({"Z": 4.0},), {"failed": "leaked"}),
        (({"X": 8.0}, -7.7), {}),
        (({}, {"X": 0.5, "Z": 0.2, "Y": 0.4}), {}),
    ]
