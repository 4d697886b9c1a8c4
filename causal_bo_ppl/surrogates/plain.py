"""The plain surrogate: one Gaussian process over all manipulable variables, without the graph.

The baseline `bo`, ordinary Bayesian optimization. Every manipulable variable is set in every
experiment, and f(x) = E[Y | do(all of them = x)] has a constant mean, integrated out under a wide
prior around the target's mean in the observational rows, and a stationary covariance with a
lengthscale for each variable.

It is asked and told about the one set of all manipulable variables. Problems whose sets were found
by a rule ("mis", "pomis", a largest size) accept that set in any query; a problem with explicit
sets that lack it is posed anew by `all_at_once`.
"""

from dataclasses import dataclass

from causal_bo_ppl.errors import ExplorationError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_size
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.surrogates.gp_regression import require_correlation
from causal_bo_ppl.surrogates.independent import Independent, begin


@dataclass(frozen=True)
class PlainMaker:
    """Makes one Gaussian process over all manipulable variables; see `interface.SurrogateMaker`.

    Parameters
    ----------
    kernel:
        The correlation of two effects: "matern52" or "rbf".
    amplitude:
        The median of the amplitude's prior, in sds of the target in the observational rows.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> maker = PlainMaker()
    >>> maker.sets(system.problem)
    (('X', 'Z'),)
    >>> bo = maker.begin(cb.fit(system.problem, system.observe(100, 0)))
    >>> tried = system.problem.queries([{"X": 0.0, "Z": -3.0}])
    >>> bool(bo.tell(tried, -2.15, 0.0).predict(tried).sd < 1e-3)
    True
    """

    kernel: str = "matern52"
    amplitude: float = 1.0

    name = "bo"

    def __post_init__(self) -> None:
        require_correlation(self.kernel)
        object.__setattr__(self, "amplitude", read_size("amplitude", self.amplitude))

    def sets(self, problem: Problem) -> tuple[tuple[str, ...], ...]:
        """Return the only set that may be suggested: all manipulable variables at once."""
        return (problem.manipulable,)

    def begin(self, post: Posterior) -> Independent:
        """Return the surrogate before any outcome."""
        problem = post.problem
        [members] = self.sets(problem)
        if problem.sets_are_explicit and members not in problem.sets:
            raise ExplorationError(
                f"plain optimization sets {listed(members)} together, which is not among the "
                "explicit sets of this problem; add that set, or pose the problem by "
                "surrogates.plain.all_at_once(problem)"
            )
        return begin(post, self.kernel, self.amplitude, causal_prior=False, members=members)


def all_at_once(problem: Problem) -> Problem:
    """Return the same problem with one set, that of all manipulable variables.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> all_at_once(cb.models.load("toy").problem).sets
    (('X', 'Z'),)
    """
    return problem.explore([problem.manipulable])
