"""Each known mistake is told which one it is, and no right answer is."""

import functools
import re

import pytest
from wrong_answers import OTHER, RIGHT, WRONG

from d2l_ext.exercises import engine

REFUSED = 'wrong answers in all'  # read by conftest.py
NAMES = [', '.join(filter(None, (wrong.exercise, wrong.name, wrong.backend)))
         for wrong in WRONG]


def judge(id, changed=(), backend=''):
    return engine.judge(engine.EXERCISES[id],
                        {**RIGHT[id, backend], **dict(changed)}, backend)


@functools.cache
def judged(index):
    wrong = WRONG[index]
    return judge(wrong.exercise, wrong.answers, wrong.backend)


def sentences(index):
    """What is said to the parts that a wrong answer changes, as one text."""
    parts = judged(index)[1]
    return ' '.join(parts[name][1] for name in WRONG[index].answers)


def numbers_in(answer):
    """The numbers of a right answer that no message may give away."""
    values = answer.values() if isinstance(answer, dict) else [answer]
    return {f'{x:.3g}' for x in values if isinstance(x, (int, float))
            and x > 10}


def marked(backend, *values, id):
    """A parameter; JAX compiles for each shape."""
    return pytest.param(*values, id=id, marks=(
        [pytest.mark.slow] if backend == 'jax' else []))


@pytest.mark.parametrize('id, backend', [
    marked(key[1], *key, id=' '.join(key).strip()) for key in RIGHT])
def test_the_right_answers_pass(id, backend):
    for _ in range(1 if backend else 20):  # sizes are drawn anew each time
        verdict, parts = judge(id, (), backend)
        assert verdict == engine.RIGHT, parts


@pytest.mark.parametrize('other', OTHER, ids=[
    ', '.join(other[:2]) for other in OTHER])
def test_right_answers_may_be_written_otherwise(other):
    """For the backend that it names last, else for each."""
    id, _, changed, *only = other
    for backend in only or [backend for key, backend in RIGHT if key == id]:
        verdict, parts = judge(id, changed, backend)
        assert verdict == engine.RIGHT, parts


@pytest.mark.parametrize('index', [
    marked(wrong.backend, i, id=NAMES[i]) for i, wrong in enumerate(WRONG)])
def test_a_wrong_answer_gets_its_own_message(index, record_property):
    record_property(REFUSED, len(WRONG))
    wrong = WRONG[index]
    verdict, parts = judged(index)
    assert verdict == engine.NOT_YET
    if not wrong.backend:  # that takes long; it has one part
        for name, (state, _) in parts.items():
            assert (state == engine.NOT_YET) == (name in wrong.answers), parts
    said = sentences(index)
    assert wrong.says in said, said
    for name in wrong.answers:
        shown = set(re.findall(r'\d[\d,.]*', parts[name][1]))
        right = RIGHT[wrong.exercise, wrong.backend][name]
        assert not numbers_in(right) & shown, f'gives the answer away: {said}'


@pytest.mark.parametrize('index', [
    i for i, wrong in enumerate(WRONG) if wrong.backend != 'jax'])
def test_a_message_is_that_of_no_other_mistake(index):
    wrong = WRONG[index]
    for i, other in enumerate(WRONG):
        if (other.exercise == wrong.exercise and other.says != wrong.says
                and other.backend == wrong.backend
                and set(other.answers) == set(wrong.answers)):
            assert wrong.says not in sentences(i), other.name


@pytest.mark.parametrize('id, backend', RIGHT, ids=[
    ' '.join(key).strip() for key in RIGHT])
def test_each_exercise_has_at_least_three_wrong_answers(id, backend):
    wrongs = [w for w in WRONG if (w.exercise, w.backend) == (id, backend)]
    assert len(wrongs) >= 3
    asked = {part.name for part in engine.EXERCISES[id].asked(backend)}
    # numbers are judged in one backend for both
    tried = {name for w in WRONG if w.exercise == id for name in w.answers}
    assert asked <= tried, asked - tried


def test_every_exercise_is_here():
    assert {id for id, _ in RIGHT} == set(engine.EXERCISES)
