"""Reading answers: numbers in any sensible form, dicts, arrays, functions.

A form is called with what the student wrote and returns it in one shape. It
raises Untouched while it is `...`, and NotYet, with what to change, if it
cannot be read. Framework arrays become NumPy's by what they can do; no
framework is imported here.
"""

import dis
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real

import numpy as np

COARSEST = 0.02  # relative: what a rounded number in words may be off


class NotYet(Exception):
    """An answer that is not right; the message is for the student."""


class Untouched(Exception):
    """An answer that is still `...`."""


@dataclass(frozen=True)
class Quantity:
    """A number in base units; slack: half a unit of its last written digit."""

    value: float
    slack: float = 0.0


# --- Units ------------------------------------------------------------------


def scaled(names, sizes):
    return {f'{prefix}{name}': factor for name in names
            for prefix, factor in sizes.items()}


THOUSANDS = {'': 1, 'k': 1e3, 'K': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12,
             'P': 1e15}
BINARY = {f'{p}i': 1024.0**i for i, p in enumerate('KMGTP', 1)}
UNITS = {
    'bytes': {**scaled(('B', 'byte', 'bytes'), THOUSANDS | BINARY),
              **{f'{p}{name}': f / 8 for name in ('bit', 'bits')
                 for p, f in (THOUSANDS | BINARY).items()}},
    'FLOPs': scaled(('FLOP', 'FLOPs', 'FLOPS', 'flop', 'flops'), THOUSANDS),
    'FLOP/byte': {f'{a}/{b}': 1 for a in ('FLOP', 'FLOPs', 'flop', 'flops')
                  for b in ('B', 'byte', 'bytes')},
    'tokens': scaled(('token', 'tokens'), THOUSANDS),
    'sequences': {'sequence': 1, 'sequences': 1},
    'times': {'x': 1, '×': 1, 'times': 1, '%': 0.01},
}
NUMBER = re.compile(r'[~≈]?\s*(?P<top>[+-]?(?:\d+\.?\d*|\.\d+)'
                    r'(?:[eE][+-]?\d+)?)\s*(?:/\s*(?P<bottom>\d+)(?![\d.]))?'
                    r'\s*(?P<unit>.*)', re.DOTALL)


def without_separators(text):
    """'3,584' and '3_584' as '3584'; what is no separator stays."""
    return re.sub(r'(?<=\d)[,_\u2009\u202f ](?=\d{3}(?!\d))', '', text)


def from_text(text, unit):
    match = NUMBER.fullmatch(without_separators(text.strip()))
    if not match:
        raise NotYet(f'{text!r} is not read as a number; a number with a '
                     f'unit looks like \'1.5e6 {unit or ""}\'')
    written = ''.join(match['unit'].split())  # '427 k tokens'
    units = THOUSANDS | UNITS.get(unit, {})
    if written and written not in units:
        other = [name for name, table in UNITS.items() if written in table]
        raise NotYet(f'the unit in {text!r} is ' + (
            f'one of {other[0]}' if other else 'not known here')
            + (f'; asked for are {unit}' if unit else '; none is asked for'))
    scale = units.get(written, 1)
    exponent = Decimal(match['top']).as_tuple().exponent
    if abs(exponent) > 400:  # Fraction would write it out
        raise NotYet(f'{text!r} is not a finite number')
    value = Fraction(match['top']) / Fraction(match['bottom'] or 1)
    slack = 0 if match['bottom'] else Fraction(10) ** exponent / 2
    if '.' not in match['top'] and 'e' not in match['top'].lower():
        slack = min(slack, Fraction(1, 2))
    return Quantity(float(value * Fraction(scale)),
                    float(slack * Fraction(scale)))


def number(unit=''):
    """The form of one number; unit: what a bare number counts."""
    def read(answer):
        if answer is ...:
            raise Untouched
        try:
            given = read_number(answer, unit)
        except (ArithmeticError, ValueError):  # 10**400, a signalling nan
            raise NotYet(f'{short(answer)} is not a finite number') from None
        if not math.isfinite(given.value):
            raise NotYet(f'{short(answer)} is not a finite number')
        return given
    return read


def read_number(answer, unit):
    if isinstance(answer, str):
        return from_text(answer, unit)
    if isinstance(answer, (bool, np.bool_)):
        raise NotYet(f'{answer} is true or false; asked for is a number')
    if isinstance(answer, (Real, Rational, Decimal)):
        return Quantity(float(answer))
    if answer is None:
        raise NotYet('None came; asked for is a number. Does a `return` '
                     'miss?')
    if callable(answer) and not hasattr(answer, '__array__'):
        raise NotYet('a function came; asked for is a number')
    array = to_numpy(answer)
    if array.size != 1:
        raise NotYet(f'shape {array.shape}; asked for is one number')
    return Quantity(float(array.reshape(())))


# --- Tables, arrays, functions ----------------------------------------------


@dataclass(frozen=True)
class Table:
    """Numbers by key, as far as they are given; missing: keys still `...`."""

    given: dict
    missing: tuple


def table(keys, unit=''):
    """The form of a dict of numbers under these keys."""
    read_one, wanted = number(unit), ', '.join(map(repr, keys))

    def read(answer):
        if answer is ...:
            raise Untouched
        if not isinstance(answer, Mapping):
            raise NotYet(f'{short(answer)} is no dict; asked for is one '
                         f'number for each of {wanted}')
        answer = {plain_key(key, keys): value
                  for key, value in answer.items()}
        if extra := [key for key in answer if key not in keys]:
            raise NotYet(f'the key {extra[0]!r} is none of {wanted}')
        given, missing = {}, []
        for key in keys:
            try:
                given[key] = read_one(answer.get(key, ...))
            except Untouched:
                missing.append(key)
            except NotYet as wrong:
                raise NotYet(f'for {key}: {wrong}') from None
        if not given:
            raise Untouched
        return Table(given, tuple(missing))
    return read


def plain_key(key, keys):
    """A key as it is asked for: '8' and np.int64(8) stand for 8."""
    return next((k for k in keys if str(k) == str(key)), key)


def to_numpy(answer):
    """What a framework, a list or NumPy calls an array, as NumPy's."""
    for name in ('detach', 'cpu', 'resolve_conj'):  # what torch wants first
        if hasattr(answer, name):
            answer = getattr(answer, name)()
    if 'bfloat16' in str(getattr(answer, 'dtype', '')):
        answer = (answer.float() if hasattr(answer, 'float')
                  else answer.astype('float32'))
    try:
        array = np.asarray(answer)
    except Exception as error:
        raise NotYet(f'{short(answer)} is not read as an array '
                     f'({first_line(error)})') from None
    if array.dtype.kind not in 'iuf':
        raise NotYet(f'{short(answer)} is not read as numbers')
    return array


def array(answer):
    """The form of an array of finite numbers, as float64."""
    if answer is ...:
        raise Untouched
    if answer is None:
        raise NotYet('None came; asked for is an array. Does a `return` miss?')
    found = to_numpy(answer).astype(np.float64)
    if not np.isfinite(found).all():
        raise NotYet('some of the numbers are nan or infinite')
    return found


def is_untouched(function):
    """Whether the body of a function is still `...`, a docstring aside."""
    code = getattr(inspect.unwrap(function), '__code__', None)
    if code is None or code.co_names:
        return False
    steps = [i for i in dis.get_instructions(code)
             if i.opname not in ('RESUME', 'NOP', 'CACHE')]
    return (all(i.opname in ('LOAD_CONST', 'RETURN_VALUE', 'RETURN_CONST')
                for i in steps)
            and [i.argval for i in steps if 'CONST' in i.opname][-1]
            in (None, ...))


def function(arguments, result):
    """The form of a function; result: the form of what it returns.

    arguments: names in order, 'P, T', or '' for one that says what it is.
    What it raises becomes a NotYet that names the call.
    """
    names = arguments.split(', ')

    def read(answer):
        if answer is ... or callable(answer) and is_untouched(answer):
            raise Untouched
        if not callable(answer):
            raise NotYet(f'{short(answer)} is no function; asked for is one'
                         + (f' of ({arguments})' if arguments else ''))

        def call(*values):
            shown = ', '.join(f'{name}={short(value)}' if name else repr(
                value) for name, value in zip(names, values, strict=True))
            try:
                found = answer(*values)
            except (Exception, SystemExit) as error:
                raise NotYet(f'the call with {shown} raised '
                             f'{first_line(error)}') from None
            try:
                return result(found)
            except NotYet as wrong:
                raise NotYet(f'with {shown}: {wrong}') from None
        return call
    return read


def first_line(error, most=160):
    """Name and first line of an error: JAX's go on for a page."""
    try:
        line = next(iter(str(error).strip().splitlines()), '')
    except Exception:  # a student's own class may have a broken __str__
        line = ''
    line = f'{type(error).__name__}: {line}'
    return line if len(line) <= most else line[:most - 3] + '...'


def short(value, most=60):
    """A value as text that fits into a message."""
    shape = getattr(value, 'shape', None)
    if shape:
        return f'an array of shape {tuple(shape)}'
    try:
        text = repr(value)
    except Exception:  # a student's object may have a broken one
        text = f'a {type(value).__name__}'
    return text if len(text) <= most else text[:most - 3] + '...'
