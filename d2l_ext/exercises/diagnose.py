"""Finding out which mistake was made.

A check knows the right formula and formulas that are wrong in a known way.
What agrees with a wrong one in all cases was probably found that way, and
gets that one's message. A message never carries the right number.
"""

import math

from .answers import COARSEST, NotYet

UNIT_STEPS = [(1000 / 1024)**k for k in (-4, -3, -2, -1, 1, 2, 3, 4)]
UNITS_MIXED = ('off by just the factor between units of 1000 and of 1024: KB '
               'and GB are powers of 1000, KiB and GiB of 1024; where were '
               'they mixed?')


def is_close(given, value, rtol=1e-6):
    """Whether a given number is this value, as closely as it was written."""
    if not math.isfinite(value):
        return given.value == value
    room = max(rtol * abs(value), min(given.slack, COARSEST * abs(value)))
    return abs(given.value - value) <= max(room, 1e-9)


def diagnose(cases, given, right, wrongs=(), rtol=1e-6, decisive=2,
             where=None, units=False):
    """NotYet, with the message of the likeliest mistake, unless all is right.

    cases: argument tuples; given: one Quantity for each; right, and each
    formula of wrongs = [(formula, message)]: functions of such arguments;
    decisive: wrong cases in a row that name a mistake if not all do; where:
    case -> words; units: whether 1000 may have been taken for 1024.
    """
    values = [right(*case) for case in cases]
    off = [i for i, value in enumerate(values)
           if not is_close(given[i], value, rtol)]
    if not off:
        return
    place = f'for {where(*cases[off[0]])}: ' if where else ''
    for shown in (range(len(cases)), off[:decisive]):
        for wrong, message in wrongs:
            if all(is_close(given[i], wrong(*cases[i]), rtol)
                   for i in shown):
                raise NotYet(place + message)
    g, value = given[off[0]].value, values[off[0]]
    if units and value and any(abs(g / value / step - 1) < 0.003
                               for step in UNIT_STEPS):
        raise NotYet(place + UNITS_MIXED)
    if g < 0 <= value:
        raise NotYet(f'{place}the number is negative')
    size = 'large' if g > value else 'small'
    far = value > 0 and not 0.1 < g / value < 10
    many = ', and not by a little' if far else ''
    raise NotYet(f'{place}the number is too {size}{many}. Write the formula '
                 'down with a unit at each factor, and try it on a case that '
                 'can be counted by hand')


def numbers(right, wrongs=(), rtol=1e-6, units=False):
    """A check of one number; wrongs: [(value, message)]."""
    def check(given, values):
        diagnose([()], [given], lambda: right,
                 [(lambda wrong=wrong: wrong, message)
                  for wrong, message in wrongs], rtol, units=units)
    return check


def tables(right, wrongs=(), rtol=1e-6, units=False, where='{}'.format,
           after=None):
    """A check of a dict of numbers; right and wrongs: functions of a key.

    after: (name, formula) of the table that these numbers are worked out
    from: a slip there is not blamed on what follows from it.
    """
    def check(table, values):
        if after and only_follows(table, values, right, *after):
            raise NotYet(f'this follows from `{after[0]}`, which is not right '
                         'yet; correct that first')
        diagnose([(key,) for key in table.given], list(table.given.values()),
                 right, wrongs, rtol, 1, where, units)
        if table.missing:
            raise NotYet('what is there is right, still to do: '
                         + ', '.join(map(str, table.missing)))
    return check


def only_follows(table, values, right, first, formula, rtol=1e-2):
    """Whether a table is wrong for no other reason than an earlier one."""
    earlier = getattr(values.get(first), 'given', {})
    pairs = [(key, g) for key, g in table.given.items()
             if key in earlier and earlier[key].value > 0]
    return (bool(pairs)
            and all(is_close(g, formula(earlier[key].value), rtol)
                    for key, g in pairs)
            and not all(is_close(g, right(key), 2 * rtol)
                        for key, g in pairs))


def formulas(cases, right, wrongs=(), rtol=1e-6, names=()):
    """A check of a function of numbers on cases; all take its arguments.

    cases: a function that returns argument tuples, new ones at each call.
    """
    def check(call, values):
        drawn = cases()
        diagnose(drawn, [call(*case) for case in drawn], right, wrongs, rtol,
                 where=lambda *case: ', '.join(
                     f'{name}={value}' for name, value
                     in zip(names, case, strict=True)))
    return check
