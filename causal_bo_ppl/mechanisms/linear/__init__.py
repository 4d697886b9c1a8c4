"""Linear mechanisms with Gaussian disturbances: V = a + W'V + e."""
