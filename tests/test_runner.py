"""Toy notebooks, really executed: each kind of fault reaches the reader."""

import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest

from d2l_ext import notebooks

pytestmark = pytest.mark.notebooks

HEADER = '''# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3{more}
# ---

# %% [markdown]
# # A toy
'''
GOOD = '''
# %%
import os
from d2l_ext import runs

print(runs.current(), runs.interactive())

# %% [markdown] tags=["expected"]
# ```output
# run: profile {profile}, text {text}, checkpoint {checkpoint} False
# ```

# %% [markdown]
# ## Numbers

# %%
print('loss 1.57 after 300 steps')
os.path.basename(os.getcwd())

# %% [markdown] tags=["expected"]
# ```output small
# loss 1.55±0.03 after 300 steps
# 'build'
# ```
# ```output full
# loss ~1.5 after 900 steps
# 'build'
# ```
'''
MANY = GOOD.replace('after 300 steps\')', 'after 301 steps\')') + '''
# %% [markdown]
# ## Many faults

# %%
print('a 1')
print('more')

# %% [markdown] tags=["expected"]
# ```output
# a 1
# less of 2
# ```

# %% tags=["skip-execution"]
unseen = 1

# %% [markdown] tags=["expected"]
# ```output smal
# ```

# %% [markdown] tags=["expected"]
# ```output
# orphan
# ```

# %%
import sys
print('be careful', file=sys.stderr)
print(float('nan'))
'''


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project, and the labels of its runs."""
    for name, value in dict(D2L_PROFILE='small', D2L_TEXT='timemachine',
                            D2L_CHECKPOINT='smollm2', MPLBACKEND='agg',
                            PYTHONPATH=str(notebooks.ROOT)).items():
        monkeypatch.setenv(name, value)
    (tmp_path / 'notebooks').mkdir()
    return tmp_path


def write(project, name, text, more=''):
    path = project / 'notebooks' / f'{name}.py'
    path.write_text(HEADER.format(more=more) + text)
    return path


def faults(project, text, more='', **options):
    result = notebooks.run(write(project, 'toy', text, more), project,
                           **options)
    return [str(fault) for fault in result.faults]


def test_a_good_notebook_passes_and_is_not_run_again(project, capsys):
    write(project, 'good', GOOD)
    assert notebooks.main([], project) == 0
    first = capsys.readouterr().out
    assert '1 exact, 1 bounded, 0 free (~)' in first
    assert '[small timemachine smollm2]  ok' in first
    built = project / 'build' / 'good.ipynb'
    cells = nbformat.read(built, as_version=4).cells
    assert 'report' not in cells[-1].source  # the probe is cut off again
    written = built.stat().st_mtime_ns

    assert notebooks.main(['good'], project) == 0
    assert 'up to date' in capsys.readouterr().out
    assert built.stat().st_mtime_ns == written
    source, = notebooks.sources(project)
    mark = notebooks.fingerprint(source, project)
    os.environ['D2L_PROFILE'] = 'full'
    assert notebooks.fingerprint(source, project) != mark
    os.environ['D2L_PROFILE'] = 'small'
    (project / 'environment.yml').write_text('a new pin')
    assert notebooks.earlier(source, project) is None


def test_every_fault_of_a_run_is_reported_at_its_heading(project, capsys):
    path = write(project, 'many', MANY)
    assert notebooks.main(['notebooks/many.py'], project) == 1
    said = capsys.readouterr().out
    for text in [
            'Numbers (cell 4): 301 is not 300',
            'written: loss 1.55±0.03 after 300 steps',
            'printed: loss 1.57 after 301 steps',
            'Many faults (cell 7): printed, but not written',
            'written, but not printed\n        written: less of 2',
            'the cell did not run', "unknown label 'smal'",
            'an output block under no code cell',
            'printed: [stderr] be careful', 'faults: 8']:
        assert text in said, f'{text!r} is not in\n{said}'
    assert (project / 'build' / 'many.ipynb').exists()
    assert notebooks.earlier(path, project) is None


def test_a_raising_cell_shows_its_code_and_error(project):
    fault, = faults(project, '\n# %%\nx = 3\nassert x == 4, f"{x} != 4"\n')
    assert fault.startswith('A toy (cell 1): AssertionError: 3 != 4')
    assert 'assert x == 4' in fault and '\x1b' not in fault


def test_a_dead_kernel_is_one_line(project):
    fault, = faults(project, '\n# %%\nimport os\nimport signal\n'
                             'os.kill(os.getpid(), signal.SIGKILL)\n')
    assert 'the kernel died (out of memory?)' in fault
    assert '\n' not in fault


def test_a_cell_that_takes_too_long_is_named(project):
    fault, = faults(project, '\n# %%\nimport time\ntime.sleep(30)\n',
                    timeout=1)
    assert fault.startswith('A toy (cell 1): A cell timed out')
    assert 'sleep(30)' in fault


def test_memory_above_the_limit_is_a_fault(monkeypatch):
    assert notebooks.peak_fault(notebooks.PEAK_LIMIT) == []
    assert notebooks.peak_fault(None) == []
    fault, = notebooks.peak_fault(4_200_000_000)
    assert fault.why == 'peak memory 4.20 GB is above 4.00 GB'


def test_an_unknown_name_lists_the_names_there_are(project, capsys):
    write(project, '01_cache_torch', GOOD)
    for name in ('01_cash_torch', 'solutions/01_cache_torch'):
        with pytest.raises(SystemExit) as stop:
            notebooks.main([name], project)
        assert stop.value.code == 2
        assert 'there are: 01_cache_torch' in capsys.readouterr().err


def test_a_project_without_notebooks_is_not_green(project):
    with pytest.raises(SystemExit):
        notebooks.main([], project)


EXERCISE = GOOD + '''
# %% [markdown]
# ### Exercise: Toy

# %%
from d2l_ext.exercises import attempt
from d2l_ext.exercises.answers import number
from d2l_ext.exercises.diagnose import numbers
from d2l_ext.exercises.engine import Exercise, Part, register

for id, value in (('toy', 4), ('game', 9)):
    register(Exercise(id, 'toy', 'Toy', ('paper',), 1, ('Think.',), (Part(
        'x', number(), (numbers(value, [(5, 'five is odd')]),), 'Even.'),)))

# %% exercise="toy"
x = ...

# %%
attempt('toy', x=x)

# %% [markdown] tags=["expected"]
# ```output
# toy: not attempted
# ```
'''
SOLUTION = '''
# %% [markdown]
# ## Toy

# %% exercise="toy"
attempt('toy', x=len('loss'))

# %% [markdown] tags=["expected"]
# ```output
# toy: right
#     x: right. Even.
# ```
'''


def solved(project, solution, text=EXERCISE):
    """The result and the faults of a notebook that has these solutions."""
    path = write(project, 'toy', text)
    if solution is not None:
        (project / 'notebooks' / 'solutions').mkdir(exist_ok=True)
        write(project, 'solutions/toy', solution)
    result = notebooks.run(path, project)
    return result, [str(fault) for fault in result.faults]


def test_solutions_run_in_the_kernel_of_their_notebook(project, capsys):
    result, faults = solved(project, SOLUTION)
    assert faults == []
    assert (result.exercises, result.solved) == (['toy'], ['toy'])
    built = (project / 'build' / 'toy.ipynb').read_text()
    assert 'toy: not attempted' in built
    assert 'toy: right' not in built and '_probe' not in built
    assert notebooks.main(['toy'], project) == 0  # up to date
    assert ('exercises: 1 (1 in the notebooks run), solutions passed: 1 of 1, '
            'wrong answers: not tested') in capsys.readouterr().out
    source, = notebooks.sources(project)
    write(project, 'solutions/toy', SOLUTION + '# changed')
    assert notebooks.earlier(source, project) is None


@pytest.mark.parametrize('solution, expected', [
    (SOLUTION.replace('lo', 'glo'),
     ['toy: the solution is not yet', 'five is odd']),
    (SOLUTION.replace('attempt(', '(lambda *a, **k: 0)('),
     ['toy: no solution makes an attempt at it']),
    (SOLUTION.replace("len('loss')", '1 / 0'),
     ['solutions, Toy (cell 2): ZeroDivisionError', 'x=1 / 0']),
    (SOLUTION.replace('Even', 'even'), ['solutions, Toy (cell 2): the text']),
    (SOLUTION.replace('toy', 'game'), ['toy: no solution makes']),
], ids=['wrong', 'no attempt', 'raises', 'prints otherwise', 'of another'])
def test_a_solution_that_is_not_right_fails_the_run(project, solution,
                                                    expected):
    result, faults = solved(project, solution)
    text = '\n'.join(faults)
    for words in expected:
        assert words in text, text
    assert notebooks.earlier(notebooks.sources(project)[0], project) is None


def test_a_missing_solution_fails_and_a_missing_folder_is_said(project,
                                                               capsys):
    (project / 'notebooks' / 'solutions').mkdir()
    result, faults = solved(project, None)
    assert faults == ['solutions (cell 0): toy: no solution makes an attempt '
                      'at it']
    (project / 'notebooks' / 'solutions').rmdir()
    assert notebooks.main([], project) == 0
    said = capsys.readouterr().out
    assert 'solutions: none run, there is no notebooks/solutions/' in said
    assert notebooks.main([], project) == 0  # and it still holds
    assert 'up to date' in capsys.readouterr().out
    (project / 'notebooks' / 'solutions').mkdir()
    assert notebooks.main([], project) == 1


@pytest.fixture
def all_cores():
    """All cores for a test; the tests' own process may keep to some."""
    if not hasattr(os, 'sched_setaffinity'):
        pytest.skip('this system keeps no process to a core')
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count()))
    yield os.sched_getaffinity(0)
    os.sched_setaffinity(0, before)


CORES = """
# %%
import os
sorted(os.sched_getaffinity(0))

# %% [markdown] tags=["expected"]
# ```output
# ~…
# ```
"""


def test_two_at_once_share_the_cores_out(project, all_cores):
    """Each kernel has its own; a third takes what is free."""
    if len(all_cores) < 2:
        pytest.skip('there is one core')
    chosen = [write(project, name, CORES) for name in 'abc']
    with notebooks.side_by_side(chosen, project, 60) as ahead:
        results = [ahead[source].result() for source in chosen]
    printed = [nbformat.read(notebooks.built(source, project), 4).cells[1]
               .outputs[0].data['text/plain'] for source in chosen]
    assert [result.name for result in results] == ['a', 'b', 'c']
    own = {frozenset(json.loads(text)) for text in printed}
    assert len(own) == 2 and frozenset.union(*own) == all_cores
    assert not frozenset.intersection(*own)


def test_what_has_one_core_or_one_notebook_runs_alone(project, monkeypatch):
    chosen = [write(project, name, GOOD) for name in 'ab']
    with notebooks.side_by_side(chosen[:1], project) as ahead:
        assert ahead == {}
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {3}, raising=False)
    with notebooks.side_by_side(chosen, project) as ahead:
        assert ahead == {}


def test_lessons_that_time_something_want_quiet():
    timed = {source.stem[:2] for source in notebooks.sources()
             if notebooks.measures_time(source)}
    assert timed == {'01', '02', '03', '04', '07'}


def pytest_in(project, *arguments):
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'nbmake.pytest_plugin',
         *arguments], cwd=project, capture_output=True, text=True,
        env={**os.environ, 'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'})
    return done.returncode, done.stdout + done.stderr


def test_pytest_fails_on_a_wrong_number_and_sums_up(project, all_cores):
    """The one command of CI, with the project's own conftest.py."""
    shutil.copy(notebooks.ROOT / 'conftest.py', project)
    (project / 'notebooks' / 'solutions').mkdir()
    write(project, '01_good', GOOD)
    write(project, 'solutions/01_good', 'raise SystemExit')
    write(project, '02_wrong', GOOD.replace('1.57', '1.59'))
    write(project, '00_timed', '# %%\n_ = "timeit("')
    code, said = pytest_in(project, '--nbmake', '-v', 'notebooks')
    assert code == 1, said
    assert '1 failed, 2 passed' in said
    assert said.index('02_wrong.py') < said.index('00_timed.py')  # alone, last
    assert 'Numbers (cell 4): 1.59 is not 1.55±0.03' in said
    assert 'printed numbers held: 1 exact, 1 bounded, 0 free (~)' in said
    assert 'NBMAKE INTERNAL ERROR' not in said

    code, said = pytest_in(project, 'notebooks/01_good.py')
    assert code != 0 and 'runs with pytest --nbmake' in said
