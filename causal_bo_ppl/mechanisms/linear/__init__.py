"""Linear mechanisms with Gaussian noise: V = a + W'V + e."""
