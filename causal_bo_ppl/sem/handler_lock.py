"""Which thread may use NumPyro's effect handlers? One at a time: their stack belongs to the process.

A program that runs in one thread would be seeded, traced and conditioned by the handlers of another. Every use of
handlers in this package holds this lock. A thread may take it again, since a simulated program may itself simulate.
Code inside a traced function holds it while it is traced only: compiled programs run side by side.
"""

from threading import RLock

HANDLER_LOCK = RLock()
