"""What an exercise is, and how an answer to it is judged.

An exercise has parts; each part has a *form*, which reads what the student
wrote (answers.py), and *checks*, called in order: values on a small case, a
property, edge cases. A check returns if all is well and raises NotYet, with
a message for the student, if not. Nothing here raises for a reader.
"""

import contextlib
import io
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from .answers import NotYet, Untouched, first_line
from .progress import VERDICTS, remember

NOT_ATTEMPTED, RIGHT, NOT_YET = VERDICTS
KINDS = 'paper', 'code', 'extended'
WIDTH = 76

EXERCISES = {}  # id -> Exercise, in the order of the lessons
latest = {}     # id -> (verdict, printed lines), for the notebook runner
hinted = {}     # id -> hints shown since this kernel started


@dataclass(frozen=True)
class Part:
    """One answer: the keyword of `attempt` that carries it, and its checks.

    form: reads the answer, see answers.py; checks: functions of (value read,
    {name: value read} of all parts); right: a sentence that adds something;
    backend: the only one in whose notebook it is asked.
    """

    name: str
    form: Callable
    checks: tuple
    right: str
    backend: str = ''


@dataclass(frozen=True)
class Exercise:
    """Statement and scratch cell stand in the notebook, the rest here."""

    id: str
    lesson: str
    title: str
    kinds: tuple
    minutes: int
    hints: tuple
    parts: tuple

    def asked(self, backend):
        """The parts that the notebook of a backend asks for."""
        return [part for part in self.parts if part.backend in ('', backend)]


def register(*exercises):
    """Make exercises known; ValueError for an id that is taken."""
    for exercise in exercises:
        if exercise.id in EXERCISES:
            raise ValueError(f'exercise {exercise.id!r}: registered twice')
        EXERCISES[exercise.id] = exercise


# --- Judging ----------------------------------------------------------------


def read_all(parts, answers):
    """({name: value}, {name: message or None}): read, and why not read."""
    values, unread = {}, {}
    for part in parts:
        try:
            values[part.name] = part.form(answers.get(part.name, ...))
        except Untouched:
            unread[part.name] = None
        except NotYet as wrong:
            unread[part.name] = str(wrong)
        except Exception as error:  # an answer may be any object at all
            unread[part.name] = cannot_read(error)
    return values, unread


def cannot_read(error):
    return (f'this answer cannot be read ({first_line(error)}); which form '
            'does the exercise ask for?')


def judge_part(part, values, unread):
    """(verdict, sentence) for one part."""
    if part.name in unread:
        why = unread[part.name]
        return (NOT_ATTEMPTED, '') if why is None else (NOT_YET, why)
    try:
        for check in part.checks:
            check(values[part.name], values)
    except Untouched:
        return NOT_ATTEMPTED, ''
    except NotYet as wrong:
        return NOT_YET, str(wrong)
    except Exception as error:
        return NOT_YET, cannot_read(error)
    return RIGHT, part.right


def judge(exercise, answers, backend=''):
    """(verdict, {part name: (verdict, sentence)})."""
    asked = exercise.asked(backend)
    values, unread = read_all(asked, answers)
    parts = {part.name: judge_part(part, values, unread) for part in asked}
    found = {verdict for verdict, _ in parts.values()}
    return found.pop() if len(found) == 1 else NOT_YET, parts


# --- What a student calls ----------------------------------------------------


def known(id):
    """The exercise of this id, or None after saying which there are."""
    if isinstance(id, str) and id in EXERCISES:
        return EXERCISES[id]
    print(f'no exercise {id!r}, there are: {", ".join(EXERCISES)}')
    return None


def wrapped(text, indent):
    text = text.encode('utf-8', 'backslashreplace').decode()  # printable
    return textwrap.wrap(text, WIDTH, initial_indent=' ' * indent,
                         subsequent_indent=' ' * (indent + 4),
                         break_on_hyphens=False)


def report(exercise, verdict, parts, unknown=()):
    """The lines that a student reads; the first is `ID: verdict`."""
    lines = [f'{exercise.id}: {verdict}']
    if verdict != NOT_ATTEMPTED:
        for name, (state, sentence) in parts.items():
            lines += wrapped(f'{name}: {state}'
                             + (f'. {sentence}' if sentence else ''), 4)
    for name in unknown:
        lines += wrapped(f'{name}: no part of this exercise, its parts are '
                         + ', '.join(parts), 4)
    if verdict == NOT_YET:
        lines.append(f"    a hint: d2l.hint('{exercise.id}')")
    return lines


def attempt(id, /, **answers):
    """Check the answers to an exercise and print what there is to say.

    answers: one for each part, `...` for what is still to do. Prints `not
    attempted`, `right`, or `not yet` with what to look at; never raises. An
    answer that does not end is interrupted by hand: no verdict, none kept.
    """
    exercise = known(id)
    if exercise is None:
        return
    said = io.StringIO()  # the report starts on a line of its own
    try:
        with contextlib.redirect_stdout(said):
            verdict, parts = judge(exercise, answers, backend())
    finally:
        if text := said.getvalue():
            print(text.removesuffix('\n'))
    lines = report(exercise, verdict, parts,
                   [name for name in answers if name not in parts])
    latest[exercise.id] = verdict, lines
    print('\n'.join(lines))
    remember(exercise.id, backend(), verdict)


def backend():
    """The backend of this kernel, '' for none or both."""
    found = [name for name in ('torch', 'jax')
             if f'd2l_ext.{name}' in sys.modules]
    return found[0] if len(found) == 1 else ''


def hint(id, number=None):
    """Print the next hint to an exercise, or the one of this number."""
    exercise = known(id)
    if exercise is None:
        return
    total = len(exercise.hints)
    if number is None:
        number = hinted.get(exercise.id, 0) + 1
        if number > total:
            print(f'{exercise.id}: those were all {total} hints; '
                  f"d2l.hint('{exercise.id}', 1) shows the first again")
            return
    if type(number) is not int or number not in range(1, total + 1):
        print(f'{exercise.id} has hints 1 to {total}, not {number!r}')
        return
    hinted[exercise.id] = number
    text = f'hint {number} of {total}: {exercise.hints[number - 1]}'
    print('\n'.join(textwrap.wrap(text, WIDTH, subsequent_indent=' ' * 4,
                                  break_on_hyphens=False)))
