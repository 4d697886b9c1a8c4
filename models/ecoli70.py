"""Gene expression in E. coli: 46 genes, 70 arcs, linear and Gaussian.

Source: the public bnlearn network `ecoli70` (Schaefer and Strimmer 2005), kept in `ecoli70.json`
("variance" is a variance). Any gene with a cause may be the target; every cause of it may be set,
or every cause but its parents. Domains: population mean +- 2 standard deviations. Optima by exact
enumeration of vertices: yaeM -4.587211 at {cspG, lacA, lacZ}; b1583 without its parents, sets of up
to five genes, 0.336196 at {asnA, cspG, eutG, fixC, lacY}.
"""

from pathlib import Path

from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.models.networks import gaussian_network, read_network
from causal_bo_ppl.systems import CausalSystem

FILE = Path(__file__).with_name("ecoli70.json")
DEFAULT_SIZE = 3  # reaches yaeM's optimum; larger sets are asked for by max_size


def ecoli70(
    target: str = "yaeM", parents: bool = True, max_size: int = DEFAULT_SIZE
) -> CausalSystem:
    """Build the network: lower a gene's expression by its causes, with or without its parents."""
    graph, _ = read_network(FILE)
    graph.require([target], "target")
    barred = () if parents else graph.parents(target)
    names = [name for name in graph.ancestors(target) if name not in barred]
    if not names:
        causes = "causes" if parents else "causes besides its parents"
        raise ArgumentError(f"the gene {target!r} has no {causes} to set; choose another target")
    name = f"ecoli70-{target}" + ("" if parents else "-without-parents")
    source = "bnlearn network ecoli70 (Schaefer and Strimmer 2005)"
    return gaussian_network(
        FILE, target=target, manipulable=names, max_size=max_size, name=name, source=source
    )
