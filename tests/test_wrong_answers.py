"""Each known mistake is told which one it is, and no right answer is."""

import re

import pytest
from wrong_answers import OTHER, RIGHT, WRONG

from d2l_ext.exercises import engine

REFUSED = 'wrong answers in all'  # read by conftest.py


def judge(id, changed=()):
    return engine.judge(engine.EXERCISES[id], {**RIGHT[id], **dict(changed)})


def numbers_in(answer):
    """The numbers of a right answer that no message may give away."""
    values = answer.values() if isinstance(answer, dict) else [answer]
    return [f'{x:.3g}' for x in values if isinstance(x, (int, float))
            and x > 10]


@pytest.mark.parametrize('id', engine.EXERCISES)
def test_the_right_answers_pass_again_and_again(id):
    for _ in range(20):  # sizes are drawn anew each time
        verdict, parts = judge(id)
        assert verdict == engine.RIGHT, parts


@pytest.mark.parametrize('id, name, changed', OTHER,
                         ids=[f'{id}, {name}' for id, name, _ in OTHER])
def test_right_answers_may_be_written_otherwise(id, name, changed):
    verdict, parts = judge(id, changed)
    assert verdict == engine.RIGHT, parts


@pytest.mark.parametrize('wrong', WRONG, ids=[
    f'{wrong.exercise}, {wrong.name}' for wrong in WRONG])
def test_a_wrong_answer_gets_its_own_message(wrong, record_property):
    record_property(REFUSED, len(WRONG))
    for _ in range(3):
        verdict, parts = judge(wrong.exercise, wrong.answers)
        assert verdict == engine.NOT_YET
        for name, (state, _) in parts.items():
            assert (state == engine.NOT_YET) == (name in wrong.answers), parts
        said = ' '.join(parts[name][1] for name in wrong.answers)
        assert wrong.says in said, said
        for name in wrong.answers:
            shown = re.findall(r'\d[\d,.]*', parts[name][1])
            assert not set(numbers_in(RIGHT[wrong.exercise][name])) & {
                *shown}, f'gives the answer away: {said}'
    for other in WRONG:
        if (other.exercise == wrong.exercise and other.says != wrong.says
                and set(other.answers) == set(wrong.answers)):
            said = judge(other.exercise, other.answers)[1]
            assert not any(wrong.says in said[name][1]
                           for name in other.answers), other.name


@pytest.mark.parametrize('id', engine.EXERCISES)
def test_each_exercise_has_at_least_three_wrong_answers(id):
    assert len([w for w in WRONG if w.exercise == id]) >= 3
    parts = {part.name for part in engine.EXERCISES[id].parts}
    assert parts == {name for w in WRONG if w.exercise == id
                     for name in w.answers}
