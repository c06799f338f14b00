"""Answers to the exercises: right ones, other right ones, known wrong ones.

A wrong answer changes one or more parts of the right ones and says which
words its own message has, and no other wrong answer's to the same part.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """A plausible mistake; says: words of the message that it must get."""

    exercise: str
    name: str
    says: str
    answers: dict
    backend: str = ''  # where code differs


# they need Wrong
from . import (  # noqa: E402
    buffers,
    cache,
    gqa,
    latent,
    memory,
    offset,
    roofline,
    sinks,
    uptraining,
)

MODULES = (offset, cache, memory, buffers, roofline, gqa, uptraining, latent,
           sinks)
# {(id, backend): answers}, no backend where one answer does for both
RIGHT = {key if isinstance(key, tuple) else (key, ''): answers
         for module in MODULES for key, answers in module.RIGHT.items()}
# (id, what is otherwise, changed parts): for each backend
OTHER = [other for module in MODULES for other in module.OTHER]
WRONG = [wrong for module in MODULES for wrong in module.WRONG]
