"""The engine: whatever a student writes, it is judged and never raises."""

import _thread
import json
import os
import threading
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest

from d2l_ext import exercises
from d2l_ext.exercises import answers, engine, export, progress, tally
from d2l_ext.exercises.answers import NotYet, Untouched
from d2l_ext.exercises.diagnose import (
    formulas,
    is_close,
    numbers,
    only_follows,
    tables,
)
from d2l_ext.exercises.engine import Exercise, Part
from d2l_ext.exercises.steps import StepCase


@pytest.fixture
def registry(monkeypatch, tmp_path):
    """An engine of its own, in a folder of its own, watched by someone."""
    monkeypatch.setattr(engine, 'EXERCISES', {})
    monkeypatch.setattr(exercises, 'EXERCISES', engine.EXERCISES)
    monkeypatch.setattr(engine, 'latest', {})
    monkeypatch.setattr(engine, 'hinted', {})
    monkeypatch.delenv('D2L_HEADLESS', raising=False)
    monkeypatch.chdir(tmp_path)
    engine.register(
        Exercise('one', '01_toy', 'One Number', ('paper',), 5,
                 ('Think.', 'Think again.'),
                 (Part('x', answers.number('bytes'), (numbers(
                     2048, [(1024, 'where is V?')], units=True),), 'Good.'),)),
        Exercise('two', '01_toy', 'Two Parts', ('paper', 'code'), 9,
                 ('Write it down.',), (
                     Part('f', answers.function('a, b', answers.number()), (
                         formulas(lambda: [(2, 3), (5, 7)],
                                  lambda a, b: a * b,
                                  [(lambda a, b: a + b, 'a sum')],
                                  names='ab'),), 'A product.'),
                     Part('t', answers.table((1, 2)), (tables(
                         lambda key: 3 * key),), 'A line.'))))
    return engine.EXERCISES


def said(capsys, id, **given):
    exercises.attempt(id, **given)
    return capsys.readouterr().out


# --- What a student reads ---------------------------------------------------


def test_the_three_verdicts(registry, capsys):
    assert said(capsys, 'one', x=...) == 'one: not attempted\n'
    assert said(capsys, 'one') == 'one: not attempted\n'
    assert said(capsys, 'one', x='2 KiB') == (
        'one: right\n    x: right. Good.\n')
    assert said(capsys, 'one', x=1024) == (
        "one: not yet\n    x: not yet. where is V?\n    a hint: "
        "d2l.hint('one')\n")


def test_what_an_answer_prints_stands_on_lines_of_its_own(registry, capsys):
    def f(a, b):
        print('.', end='')
        return a * b
    assert said(capsys, 'two', f=f, t=...).startswith('..\ntwo: not yet\n')


def test_a_trial_hands_over_copies(backend):
    """What an answer does to its arguments, the reference does not see."""
    def spoil(x):
        x -= 1
        return x
    x = np.ones(3, np.float32)
    assert not backend.numpy(backend.d2l.try_arrays(spoil)(x)).any()
    assert (x == 1).all()


def test_the_size_of_a_number_is_not_that_of_its_distance_from_zero():
    for value, given, message in ((-3, -2, 'too large. '),
                                  (-3, -5, 'too small. '),
                                  (-3, 1, 'too large. '),
                                  (0, 1e-5, 'too large. '),
                                  (3, 50, 'too large, and not by a little'),
                                  (3, 0.2, 'too small, and not by a little'),
                                  (3, -3, 'the number is negative')):
        with pytest.raises(NotYet, match=message):
            numbers(value)(answers.Quantity(given), {})


def test_parts_may_be_at_different_stages(registry, capsys):
    text = said(capsys, 'two', f=lambda a, b: a * b, t={1: 3, 2: ...})
    assert text.startswith('two: not yet\n    f: right. A product.\n    t: '
                           'not yet. what is there is right, still to do: 2')
    text = said(capsys, 'two', f=lambda a, b: a + b, t=...)
    assert 'f: not yet. for a=2, b=3: a sum' in text
    assert 't: not attempted\n' in text


def test_a_part_may_be_asked_in_one_backend_only(registry, capsys,
                                                monkeypatch):
    one, = registry['one'].parts
    engine.register(Exercise(
        'own', '01_toy', 'Own', ('code',), 5, ('Look.',), (
            one, Part('y', answers.number(), one.checks, 'Views.',
                      backend='torch'))))
    monkeypatch.setattr(engine, 'backend', lambda: 'jax')
    assert said(capsys, 'own', x=2048) == 'own: right\n    x: right. Good.\n'
    monkeypatch.setattr(engine, 'backend', lambda: 'torch')
    assert 'own: not yet' in said(capsys, 'own', x=2048)
    assert 'y: right. Views.' in said(capsys, 'own', x=2048, y=2048)


def test_unknown_names_are_said(registry, capsys):
    assert said(capsys, 'three') == ("no exercise 'three', there are: one, "
                                     'two\n')
    assert said(capsys, ['one']).startswith("no exercise ['one']")
    exercises.attempt('one', x=2048, y=1, id=2)
    text = capsys.readouterr().out
    for name in ('y', 'id'):
        assert f'{name}: no part of this exercise, its parts are x' in text


class Broken:
    """An object that refuses whatever is asked of it."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError('repr')

    def __eq__(self, other):
        raise RuntimeError('eq')

    __hash__ = None


def exits(a, b):
    raise SystemExit(1)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError('str')


def raises_mutely(a, b):
    raise Mute


def raises_surrogates(a, b):
    raise ValueError('\ud800')


ANYTHING = [
    None, True, '', 'abc', '2048 parsecs', '1/0', float('nan'), -np.inf,
    10**400, Decimal('sNaN'), 1 + 2j, [], [1, 2], [[1], [2, 3]], {}, {1: ...},
    {1: {2: 3}}, {'x': 1}, {Ellipsis: 1}, np.zeros((2, 0)), np.array('x'),
    np.array([None]), object(), Broken(), int, len, exits, lambda: 1,
    lambda a, b: [].clear(), lambda a, b: [a, b], lambda a, b: lambda: 1,
    lambda a, b: 'nan', lambda a, b: Broken(), lambda *a: {}['x'], b'2048',
    raises_mutely, raises_surrogates, Mute(), '\ud800',
    range(3), (x for x in 'ab'), type('T', (), {'__array__': lambda s: 1})(),
]


@pytest.mark.parametrize('index', range(len(ANYTHING)))
def test_nothing_a_student_writes_raises(registry, capsys, index):
    answer = ANYTHING[index]
    for id, name in (('one', 'x'), ('two', 'f'), ('two', 't')):
        text = said(capsys, id, **{name: answer})
        untouched = name == 't' and type(answer) is dict and (
            list(answer.values()) in ([], [...]))
        assert text.startswith(f'{id}: not attempted' if untouched
                               else f'{id}: not yet'), text


# --- Numbers ----------------------------------------------------------------


@pytest.mark.parametrize('answer, unit, value', [
    (327680, 'bytes', 327680), (np.float32(2.5), '', 2.5),
    (Fraction(1, 3), '', 1 / 3), (Decimal('1e3'), '', 1000),
    (np.array([[7]]), '', 7), ([7], '', 7), ('320 KiB', 'bytes', 327680),
    ('1.5e6 bytes', 'bytes', 1.5e6), ('0.33 MB', 'bytes', 330000),
    ('8 bits', 'bytes', 1), ('1,048,576', 'bytes', 2**20),
    ('1_000', '', 1000), ('~ 3/4', '', 0.75), ('83 TFLOP', 'FLOPs', 83e12),
    ('427k', 'tokens', 427000), ('427 k tokens', 'tokens', 427000),
    ('0.5 FLOP/byte', 'FLOP/byte', 0.5), ('50 %', 'times', 0.5),
    ('247.5x', 'times', 247.5), ('-2', '', -2), ('≈ .5', '', 0.5),
])
def test_numbers_come_in_any_sensible_form(answer, unit, value):
    given = answers.number(unit)(answer)
    assert given.value == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize('answer, message', [
    ('3 tokens', "the unit in '3 tokens' is one of tokens; asked for are "
                 'bytes'),
    ('3 apples', 'not known here'), ('three', 'not read as a number'),
    (True, 'true or false'), (None, '`return`'), ([1, 2], 'shape (2,)'),
    (float('inf'), 'not a finite number'), (10**400, 'not a finite number'),
])
def test_what_is_no_number_is_said(answer, message):
    with pytest.raises(NotYet) as wrong:
        answers.number('bytes')(answer)
    assert message in str(wrong.value)


def test_framework_arrays_are_read_by_what_they_can_do():
    class Tensor:  # as torch's, that neither NumPy nor float takes as it is
        dtype, shape = 'bfloat16', (2,)

        def detach(self):
            return self

        cpu = detach

        def float(self):
            return np.array([1, 2], dtype=np.float32)
    assert answers.array(Tensor()).tolist() == [1, 2]


def test_a_framework_is_not_imported():
    import subprocess
    import sys
    code = ('import sys, d2l_ext.exercises, d2l_ext.exercises.export\n'
            'print({"torch", "jax", "flax"} & set(sys.modules))')
    assert subprocess.run([sys.executable, '-c', code], text=True,
                          capture_output=True).stdout == 'set()\n'


def test_rounded_text_counts_as_closely_as_it_is_written():
    read = answers.number('bytes')
    assert is_close(read('0.33 MB'), 327_680)
    assert not is_close(read('0.32 MB'), 327_680)
    assert not is_close(read('0.3 MB'), 327_680)  # too coarse
    assert not is_close(read(330_000), 327_680)
    assert not is_close(read('0.330 MB'), 327_680)


def untouched_bodies():
    def dots(a, b):
        ...

    def documented(a, b):
        """Says what to do."""
        ...

    def passed(a, b):
        pass

    def returned(a, b):
        return ...
    return [dots, documented, passed, returned, lambda a, b: ...]


@pytest.mark.parametrize('index', range(5))
def test_an_untouched_function_is_not_attempted(index):
    with pytest.raises(Untouched):
        answers.function('a, b', answers.number())(untouched_bodies()[index])


def test_a_function_that_forgets_to_return_is_attempted():
    def forgets(a, b):
        a + b  # noqa: B018
    call = answers.function('a, b', answers.number())(forgets)
    with pytest.raises(NotYet, match='with a=1, b=2: None came'):
        call(1, 2)
    assert not answers.is_untouched(lambda a, b: 0)
    assert not answers.is_untouched(len)


# --- Diagnosis --------------------------------------------------------------


def refused(check, value, values=()):
    with pytest.raises(NotYet) as wrong:
        check(value, dict(values))
    return str(wrong.value)


def test_the_mistake_that_explains_all_cases_is_named():
    read = answers.table((1, 2, 3))
    check = tables(lambda k: 4 * k, [(lambda k: 8, 'the first'),
                                     (lambda k: 8 * k, 'the second')])
    assert refused(check, read({1: 8, 2: 16, 3: 24})) == (
        'for 1: the second')
    assert refused(check, read({1: 8, 2: 8, 3: 8})) == (
        'for 1: the first')
    assert 'too large' in refused(check, read({1: 5, 2: 8, 3: 12}))
    assert 'too small, and not by a little' in refused(
        check, read({1: 0.001, 2: 8, 3: 12}))
    assert 'negative' in refused(check, read({1: -4, 2: 8, 3: 12}))


def test_units_of_1000_and_1024_are_told_apart():
    read, check = answers.number('bytes'), numbers(2**30, units=True)
    for slip in ('1 GB', '1e9', '1.2 GiB'):
        text = refused(check, read(slip))
        assert ('units of 1000' in text) == (slip != '1.2 GiB')


def test_what_follows_from_a_slip_is_not_blamed():
    read = answers.table((1, 2))
    first, second = read({1: 10, 2: 20}), read({1: 10, 2: 5})
    arguments = dict(values={'a': first}, first='a',
                     formula=lambda x: 100 / x)
    assert only_follows(second, right=lambda k: 50 / k, **arguments)
    assert not only_follows(second, right=lambda k: 10 / k, **arguments)
    assert not only_follows(read({1: 3, 2: 5}), right=lambda k: 50 / k,
                            **arguments)


# --- Where a student stands -------------------------------------------------


def test_verdicts_are_kept_next_to_the_notebook(registry, capsys,
                                                monkeypatch):
    monkeypatch.setattr(engine, 'backend', lambda: 'torch')
    for x in (..., 1024, 2048, ...):
        exercises.attempt('one', x=x)
    record = json.loads(open(progress.NAME).read())
    assert record['one']['torch']['verdict'] == 'right'
    assert record['one']['torch']['tries'] == 2
    capsys.readouterr()
    exercises.exercises()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ['one', '5', 'paper', 'yes', 'right']
    assert lines[3].split() == ['two', '9', 'paper,', 'code', 'no', 'not',
                                'attempted']
    assert 'make fresh NB=' in lines[-1]

    monkeypatch.setattr(engine, 'backend', lambda: 'jax')
    exercises.attempt('one', x=...)
    exercises.attempt('one', x=1)
    capsys.readouterr()
    exercises.exercises()
    assert 'not yet (jax), right (torch)' in capsys.readouterr().out


@pytest.mark.parametrize('text', ['{', '[]', '7', '{"one": 3}', 'null',
                                  '{"one": {"torch": {}}}', '\xff',
                                  '{"one": {"torch": {"verdict": 3}}}',
                                  '{"one": {"torch": {"verdict": "?"}}}',
                                  '{"one": {"torch": {"verdict": "right",'
                                  ' "tries": 1e999}}}'])
def test_a_damaged_file_is_set_aside(registry, capsys, text):
    for number in ('', '-2'):
        with open(progress.NAME, 'w', encoding='latin-1') as file:
            file.write(text)
        exercises.attempt('one', x=2048)
        assert 'is damaged: set aside as' in capsys.readouterr().out
        with open(f'{progress.NAME}.damaged{number}',
                  encoding='latin-1') as file:
            assert file.read() == text
        assert 'one' in progress.read()


def test_a_folder_that_cannot_be_written_to_costs_only_the_memory(
        registry, capsys, monkeypatch):
    def full(path):
        raise OSError('no space left')
    monkeypatch.setattr(progress, 'atomic_path', full)
    assert said(capsys, 'one', x=2048).endswith(
        'Good.\nthis verdict is not kept: no space left\n')


def test_a_run_that_nobody_watches_keeps_nothing(registry, monkeypatch):
    monkeypatch.setenv('D2L_HEADLESS', '1')
    exercises.attempt('one', x=2048)
    assert not os.path.exists(progress.NAME)
    assert engine.latest['one'][0] == engine.RIGHT


def endless(a, b):
    while True:
        pass


def test_an_endless_answer_can_be_interrupted(registry, capsys):
    """No verdict then, and what was kept before stays as it was."""
    exercises.attempt('two', f=lambda a, b: a * b, t={1: 3, 2: 6})
    before = open(progress.NAME).read()
    timer = threading.Timer(0.3, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        exercises.attempt('two', f=endless, t=...)
    assert os.listdir() == [progress.NAME]
    assert open(progress.NAME).read() == before
    capsys.readouterr()
    assert said(capsys, 'two', f=..., t={1: 3, 2: 7}).startswith(
        'two: not yet')
    assert progress.read()['two'][''] | {'when': ''} == {
        'verdict': 'not yet', 'tries': 2, 'when': ''}


def test_an_interrupt_while_a_verdict_is_written_leaves_the_last(
        registry, monkeypatch):
    exercises.attempt('one', x=2048)
    before = open(progress.NAME).read()

    def interrupted(*args):
        raise KeyboardInterrupt
    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(os, 'replace', interrupted)
        exercises.attempt('one', x=1)
    assert os.listdir() == [progress.NAME]
    assert open(progress.NAME).read() == before


@pytest.mark.parametrize('G', [None, 1])
def test_a_trial_that_is_interrupted_gives_the_own_step_back(backend, G):
    d2l, seen = backend.d2l, []
    layer = d2l.GQAAttention if G else d2l.GPT.CausalAttention
    own = layer.forward_step

    def interrupted(attention, *args):
        seen.append(type(attention).forward_step is own)
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        d2l.try_step(interrupted)(StepCase(1, 2, G, 2, (1, 1)))
    assert seen == [False] and layer.forward_step is own


def test_hints_come_one_after_the_other(registry, capsys):
    for _ in range(3):
        exercises.hint('one')
    exercises.hint('one', 1)
    for number in (3, True, 2.0):
        exercises.hint('one', number)
    exercises.hint('none')
    assert capsys.readouterr().out.splitlines() == [
        'hint 1 of 2: Think.', 'hint 2 of 2: Think again.',
        "one: those were all 2 hints; d2l.hint('one', 1) shows the first "
        'again', 'hint 1 of 2: Think.', 'one has hints 1 to 2, not 3',
        'one has hints 1 to 2, not True', 'one has hints 1 to 2, not 2.0',
        "no exercise 'none', there are: one, two"]


def test_an_id_is_taken_once(registry):
    with pytest.raises(ValueError, match="'one': registered twice"):
        engine.register(registry['one'])


def test_every_exercise_is_whole():
    for id, exercise in exercises.EXERCISES.items():
        assert id == exercise.id and exercise.parts
        assert set(exercise.kinds) <= set(engine.KINDS) and exercise.kinds
        assert 1 <= len(exercise.hints) <= 3 and exercise.minutes > 0
        assert all(part.right and part.checks for part in exercise.parts)


# --- What an instructor reads -----------------------------------------------


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_code_cell(source, outputs=[
            nbformat.v4.new_output('stream', text=text)] if text else [])
        for source, text in cells])


CALL = "d2l.attempt('cache-70b', x=x)"


def test_a_class_s_verdicts_as_csv(tmp_path, capsys):
    students = {
        'ada/02.ipynb': [('print(1)', 'shared-nothing: right\n'),
                         (CALL, 'cache-70b: right\n    token_bytes: right. A\n'
                          '    break_even: right. B\n'
                          '    sequences: right. C\n')],
        'bob/02.ipynb': [(CALL, 'cache-70b: not yet\n    token_bytes: right. '
                                'A\n    break_even: not attempted\n')],
        'cleo/02.ipynb': [(CALL, ''), ('', '')],
        '=dan/02.ipynb': [(CALL, 'cache-70b: not attempted\n')],
        'eve/none.ipynb': [('1 + 1', '2\n')]}
    for name, cells in students.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        nbformat.write(notebook(*cells), path)
    for name, text in {'fay.ipynb': '{"cells": [', 'gus.ipynb': '[]',
                       'hal.ipynb': '', 'ivy.ipynb': '{"cells": [3]}',
                       'notes.txt': CALL}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / 'jim.ipynb').write_bytes(b'\xff\xfe')
    assert export.main([str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        'notebook,exercise,verdict,parts right,parts',
        './=dan/02.ipynb,cache-70b,not attempted,0,3',
        'ada/02.ipynb,cache-70b,right,3,3',
        'bob/02.ipynb,cache-70b,not yet,1,3',
        'cleo/02.ipynb,cache-70b,not run,0,0',
        *(f'{name}.ipynb,,unreadable,,'
          for name in ('fay', 'gus', 'hal', 'ivy', 'jim'))]
    assert len(err.splitlines()) == 5
    with pytest.raises(SystemExit):
        export.main([str(tmp_path / 'fay.ipynb')])


def test_the_tally_holds_only_for_what_was_tested(tmp_path, monkeypatch):
    folder = tmp_path / 'tests' / 'wrong_answers'
    folder.mkdir(parents=True)
    assert tally.read(tmp_path) is None
    tally.write(tmp_path, 7)
    assert tally.read(tmp_path) == 7
    (folder / 'new.py').write_text('WRONG = []')
    assert tally.read(tmp_path) is None
    (tmp_path / 'build' / tally.NAME).write_text('[]')
    assert tally.read(tmp_path) is None


def test_both_backends_offer_the_same_three_calls():
    common = SimpleNamespace(**{name: getattr(exercises, name) for name in
                                ('attempt', 'hint', 'exercises')})
    from d2l_ext import common as namespace
    for name, value in vars(common).items():
        assert getattr(namespace, name) is value
