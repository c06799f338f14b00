"""Exercises: statements in the notebooks, checks here, for both backends.

No framework is imported here; answers are numbers, dicts, arrays, and
functions. A reader calls `attempt`, `hint` and `exercises`.
"""

from . import (
    buffers,
    cache,
    gqa,
    latent,
    memory,
    offset,
    progress,
    roofline,
    sinks,
    uptraining,
)
from .engine import EXERCISES, attempt, hint, register

register(offset.MISSING_OFFSET, cache.GENERATION_COST, memory.CACHE_70B,
         buffers.CACHE_BUFFERS, roofline.SHARED_READS, gqa.CACHED_GQA,
         uptraining.UPTRAINING, latent.ABSORBED, latent.FIXED_BASIS,
         sinks.SINK_NOOP, sinks.STREAMING)


def exercises():
    """Print all exercises, and where this folder's student stands."""
    record = progress.read()
    print(f'{"exercise":16}{"min":>4}  {"kind":24}{"tried":7}last verdict')
    for exercise in EXERCISES.values():
        tried, last = progress.standing(record.get(exercise.id, {}))
        print(f'{exercise.id:16}{exercise.minutes:4}  '
              f'{", ".join(exercise.kinds):24}{tried:7}{last}')
        print(f'    {exercise.lesson}: {exercise.title}')
    print('a clean notebook, yours kept under a dated name: '
          'make fresh NB=01_cache_torch')
