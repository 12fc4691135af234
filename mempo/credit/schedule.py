"""What an iteration asks of the memory advantage: its weight, and which probabilities to score."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

from mempo.config import Memory


def memory_weight(settings: Memory, iteration: int, iterations: int) -> float:
    """w(x) of A_k = A^T + w A^M, with x = iteration / (iterations - 1) in [0, 1].

    constant   w = weight
    linear     w = weight + x (final_weight - weight)
    cosine     w = final_weight + (weight - final_weight) (1 + cos(pi x)) / 2

    iteration: from 0. The first iteration has `weight`, the last one and any after it
    `final_weight`; a run of one iteration has only a first.
    """
    first, last = settings.weight, settings.final_weight
    x = min(iteration / (iterations - 1), 1.0) if iterations > 1 else 0.0
    match settings.schedule:
        case "constant":
            return first
        case "linear":
            return (1 - x) * first + x * last
        case "cosine":
            kept = (1 + cos(pi * x)) / 2
            return kept * first + (1 - kept) * last


@dataclass(frozen=True)
class Scoring:
    """Which probabilities an iteration scores."""

    memory: bool  # P(answer | memory)
    history: bool  # P(answer | full history) beside it


def scoring(settings: Memory, iteration: int) -> Scoring:
    """What to score in an iteration (from 0).

    P(answer | memory): always where A^M or the gain bonus is made of it, else every
    `score_every`-th iteration. P(answer | full history): where A^M needs it (it is the contrast,
    or `memory.function` is given it), else every `full_every`-th iteration, if the memories are
    scored in it.
    """
    needed = settings.trained or settings.gain_bonus > 0
    memory = needed or iteration % settings.score_every == 0
    watched = settings.full_every > 0 and iteration % settings.full_every == 0
    return Scoring(memory, memory and (settings.needs_history or watched))
