"""User-defined mechanisms: NumPyro functions of the causes, or a whole NumPyro program.

A function of the causes draws its parameters by `numpyro.sample`, which gives their priors, and
returns the mean of its variable, to which Gaussian noise with a learned sd is added, or the
distribution of its variable given the causes::

    def saturate(X):
        most = numpyro.sample("most", dist.LogNormal(0.0, 1.0))
        half = numpyro.sample("half", dist.LogNormal(0.0, 1.0))
        return most * X / (half + X)

    post = cb.fit(problem, data, mechanisms={"Z": saturate, "Y": "gp"}, method="laplace")

Causes are passed as keywords, under their names; a function whose only parameter is called `causes`
is given them as one mapping, for names that are no identifiers. Values are arrays with one number
for each of many observations, so that `jax.numpy` is needed, and no plate over observations.
Variables that are not named are linear. `mechanisms=program` takes a whole program instead, with a
site for every variable of the graph.

Theta are the unconstrained parameters, as NumPyro's samplers see them: `b[Z]` of a real parameter b
of the mechanism of Z, `log_most[Z]` of a positive one, `logit_share[Z]` of one between 0 and 1,
`free_x[Z]` of others; and `log_sd[Z]` where noise was added.
"""
