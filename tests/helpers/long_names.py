"""Names of variables that are too long for most figures."""

HEAT, PRESSURE = "reactor temperature (K)", "reactor pressure at the outlet (Pa)"
CATALYST, PROFIT = "catalyst_concentration_mol_per_l", "profit per campaign ($)"
