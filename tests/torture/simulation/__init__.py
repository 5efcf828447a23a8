"""Deterministic simulation of the local runtime: from one seed a topology, its faults, and every order of steps.

``python -m tests.torture.simulation --seed N`` replays one and tells what happens; ``--seconds S`` looks for new ones.
"""

from tests.torture.simulation.plan import Plan, plan_of
from tests.torture.simulation.run import Simulated, SimulationError, simulate
from tests.torture.simulation.threads import simulate_with_threads

__all__ = ["Plan", "Simulated", "SimulationError", "plan_of", "simulate", "simulate_with_threads"]
